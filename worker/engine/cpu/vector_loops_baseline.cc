// Compiled for the oldest processor of the architecture; see vector_loops_body.h for what may not
// be used here.

#include "worker/engine/cpu/vector_loops_body.h"
#include "worker/engine/cpu/vector_loops_variants.h"

namespace poseidon {

constinit const VectorLoops kBaselineVectorLoops = make_vector_loops("baseline");

}  // namespace poseidon
