#pragma once

// The tables that the kernel files offer to kernels.cc. No other file includes this.

#include "common/tensor/kernels.h"

namespace poseidon {

extern const Kernels kBaselineKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;  ///< needs AVX2 and F16C
/// `kernels` with the functions that AVX-512 does faster. The call itself needs AVX-512 F.
Kernels with_avx512(const Kernels& kernels);
#endif

}  // namespace poseidon
