#pragma once

// A version of a chunk that does not change while training continues.
//
// Called by: server/shard/shard.h, which freezes it by sharing its buffers;
// server/store/checkpoint_keeper.h, which writes it to disk; server/store/replica_sender.h, which
// sends it to a second server. When both have released it, the shard reuses or frees the memory.
// Calls: nothing.

#include "common/base/ids.h"
#include "common/memory/aligned_buffer.h"

namespace poseidon {

/// Parameters and optimizer slots (empty where unused). The floats do not change while this is
/// held.
struct FrozenChunk {
  ChunkId chunk;
  Iteration version = 0;
  FloatBuffer parameters, state0, state1;
};

}  // namespace poseidon
