#pragma once

// What each of the files with kernels offers to kernels.cc. Nobody else includes this.

#include "common/tensor/kernels.h"

namespace poseidon {

extern const Kernels kBaselineKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;  ///< needs AVX2 and F16C
/// `kernels` with what AVX-512 does better. Needs AVX-512 F to be called at all.
Kernels with_avx512(const Kernels& kernels);
#endif

}  // namespace poseidon
