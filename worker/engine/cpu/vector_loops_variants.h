#pragma once

// What each of the files with loops offers to vector_loops.cc. Nobody else includes this.

#include "worker/engine/cpu/vector_loops.h"

namespace poseidon {

extern const VectorLoops kBaselineVectorLoops;
#if defined(__x86_64__)
extern const VectorLoops kAvx2VectorLoops;    ///< needs AVX2
extern const VectorLoops kAvx512VectorLoops;  ///< needs AVX-512 F, DQ, BW and VL
#endif

}  // namespace poseidon
