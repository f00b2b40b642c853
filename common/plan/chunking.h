#pragma once

// How a layer is cut into chunks. Pure.
// Before: the planner knows the layers. After: placement gives each chunk to a server.

#include <cstdint>
#include <vector>

namespace poseidon {

/// Bytes of one float32, the element type that chunk sizes are stated in.
inline constexpr std::int64_t kElementBytes = 4;

/// Most bytes of one chunk; every message of the data path is bounded by it.
inline constexpr std::int64_t kMaxChunkBytes = std::int64_t{64} << 20;

/// A contiguous element range of one layer.
struct ChunkRange {
  std::int64_t offset = 0;    ///< elements from the start of the layer
  std::int64_t elements = 0;  ///< > 0
  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};

/// Cuts `elements` (>= 0) float32 values into ranges of `chunk_bytes` (>= 4; a rest below a whole
/// element is left off), in order and without gaps; all equal but the last. No elements, no chunks.
std::vector<ChunkRange> split_into_chunks(std::int64_t elements, std::int64_t chunk_bytes);

}  // namespace poseidon
