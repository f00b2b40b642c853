#pragma once

// Cuts layers into chunks. Pure.
//
// Called by: coordinator/planning/planner.h, which then places each chunk on a server. Calls:
// nothing.

#include <cstdint>
#include <vector>

namespace poseidon {

/// Bytes of one float32, the element type that chunk sizes are stated in.
inline constexpr std::int64_t kElementBytes = 4;

/// Largest chunk in bytes; it bounds every message of the data path.
inline constexpr std::int64_t kMaxChunkBytes = std::int64_t{64} << 20;

/// A contiguous element range of one layer.
struct ChunkRange {
  std::int64_t offset = 0;    ///< elements from the start of the layer
  std::int64_t elements = 0;  ///< > 0
  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};

/// Cuts `elements` (>= 0) float32 values into ranges of `chunk_bytes` (>= 4; rounded down to whole
/// elements), in order and without gaps; all are equal except the last. No elements give no chunks.
std::vector<ChunkRange> split_into_chunks(std::int64_t elements, std::int64_t chunk_bytes);

}  // namespace poseidon
