// Compiled for the oldest processor of the architecture; vector_loops_body.h lists what must not be
// used here.

#include "worker/engine/cpu/vector_loops_body.h"
#include "worker/engine/cpu/vector_loops_variants.h"

namespace poseidon {

constinit const VectorLoops kBaselineVectorLoops = make_vector_loops("baseline");

}  // namespace poseidon
