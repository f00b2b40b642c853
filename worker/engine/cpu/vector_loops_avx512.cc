// Compiled for processors with AVX-512; see vector_loops_body.h for what may not be used here.

#include "worker/engine/cpu/vector_loops_body.h"
#include "worker/engine/cpu/vector_loops_variants.h"

namespace poseidon {

constinit const VectorLoops kAvx512VectorLoops = make_vector_loops("avx512");

}  // namespace poseidon
