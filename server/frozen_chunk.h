#pragma once

#include "common/aligned_buffer.h"
#include "common/ids.h"

namespace poseidon {

/// A chunk at one version, with its optimizer slots (empty where there are none). Whoever holds it
/// finds the floats unchanged.
struct FrozenChunk {
  ChunkId chunk;
  Iteration version = 0;
  FloatBuffer parameters, state0, state1;
};

}  // namespace poseidon
