#pragma once

// A version of a chunk that stays as it is, whatever training does.
//
// Before: server/shard/shard.h freezes it, by sharing its buffers. After:
// server/store/checkpoint_keeper.h writes it to the disk, server/store/replica_sender.h sends it to
// a second server; when both have let go, the memory is the shard's again or is freed.

#include "common/base/ids.h"
#include "common/tensor/aligned_buffer.h"

namespace poseidon {

/// With its optimizer slots, empty where there are none. Whoever holds it finds the floats
/// unchanged.
struct FrozenChunk {
  ChunkId chunk;
  Iteration version = 0;
  FloatBuffer parameters, state0, state1;
};

}  // namespace poseidon
