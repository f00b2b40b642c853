#pragma once

// The tables that the loop files offer to vector_loops.cc. No other file includes this.

#include "worker/engine/cpu/vector_loops.h"

namespace poseidon {

extern const VectorLoops kBaselineVectorLoops;
#if defined(__x86_64__)
extern const VectorLoops kAvx2VectorLoops;    ///< needs AVX2
extern const VectorLoops kAvx512VectorLoops;  ///< needs AVX-512 F, DQ, BW and VL
#endif

}  // namespace poseidon
