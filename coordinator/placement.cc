#include "coordinator/placement.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "common/check.h"

namespace poseidon {

std::vector<ServerIndex> place_chunks(absl::Span<const std::int64_t> chunk_bytes,
                                      std::uint32_t servers) {
  POSEIDON_CHECK(servers > 0, "chunks need a server");
  std::vector<std::size_t> largest_first(chunk_bytes.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](std::size_t a, std::size_t b) { return chunk_bytes[a] > chunk_bytes[b]; });

  using Load = std::pair<std::int64_t, std::uint32_t>;  // (bytes, server): ties to the lower server
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (std::uint32_t server = 0; server < servers; ++server) loads.emplace(0, server);

  std::vector<ServerIndex> owner(chunk_bytes.size());
  for (const std::size_t chunk : largest_first) {
    const auto [bytes, server] = loads.top();
    loads.pop();
    owner[chunk] = ServerIndex(server);
    loads.emplace(bytes + chunk_bytes[chunk], server);
  }
  return owner;
}

}  // namespace poseidon
