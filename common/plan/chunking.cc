#include "common/plan/chunking.h"

#include <algorithm>

#include "common/base/check.h"

namespace poseidon {

std::vector<ChunkRange> split_into_chunks(std::int64_t elements, std::int64_t chunk_bytes) {
  POSEIDON_CHECK(elements >= 0, "a layer has no negative size");
  POSEIDON_CHECK(chunk_bytes >= kElementBytes, "a chunk holds at least one element");
  const std::int64_t chunk_elements = chunk_bytes / kElementBytes;
  std::vector<ChunkRange> chunks;
  chunks.reserve(static_cast<std::size_t>(elements / chunk_elements + 1));
  for (std::int64_t offset = 0; offset < elements;) {
    const std::int64_t count = std::min(chunk_elements, elements - offset);
    chunks.push_back({.offset = offset, .elements = count});
    offset += count;
  }
  return chunks;
}

}  // namespace poseidon
