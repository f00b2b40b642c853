// Compiled for processors with AVX-512; vector_loops_body.h lists what must not be used here.

#include "worker/engine/cpu/vector_loops_body.h"
#include "worker/engine/cpu/vector_loops_variants.h"

namespace poseidon {

constinit const VectorLoops kAvx512VectorLoops = make_vector_loops("avx512");

}  // namespace poseidon
