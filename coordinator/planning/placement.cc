#include "coordinator/planning/placement.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "common/base/check.h"

namespace poseidon {

std::vector<ServerIndex> place_chunks(absl::Span<const std::int64_t> chunk_bytes,
                                      std::uint32_t servers) {
  POSEIDON_CHECK(servers > 0, "chunks need a server");

  using Load = std::pair<std::int64_t, std::uint32_t>;  // (bytes, server): ties to the lower server
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (std::uint32_t server = 0; server < servers; ++server) loads.emplace(0, server);

  std::vector<ServerIndex> owner(chunk_bytes.size());
  for (std::size_t chunk = chunk_bytes.size(); chunk-- > 0;) {
    const auto [bytes, server] = loads.top();
    loads.pop();
    owner[chunk] = ServerIndex(server);
    loads.emplace(bytes + chunk_bytes[chunk], server);
  }
  return owner;
}

std::vector<ServerIndex> place_chunks(absl::Span<const std::int64_t> chunk_bytes,
                                      const std::vector<double>& shares) {
  POSEIDON_CHECK(!shares.empty(), "chunks need a server");
  if (std::adjacent_find(shares.begin(), shares.end(), std::not_equal_to<>()) == shares.end()) {
    return place_chunks(chunk_bytes, static_cast<std::uint32_t>(shares.size()));
  }
  std::vector<std::int64_t> loads(shares.size(), 0);
  std::vector<ServerIndex> owner(chunk_bytes.size());
  for (std::size_t chunk = chunk_bytes.size(); chunk-- > 0;) {
    std::size_t first = shares.size();
    double first_end = std::numeric_limits<double>::infinity();
    for (std::size_t server = 0; server < shares.size(); ++server) {
      if (!(shares[server] > 0.0)) continue;
      const double end = static_cast<double>(loads[server] + chunk_bytes[chunk]) / shares[server];
      if (end < first_end) first = server, first_end = end;
    }
    POSEIDON_CHECK(first < shares.size(), "some server has a share");
    loads[first] += chunk_bytes[chunk];
    owner[chunk] = ServerIndex(static_cast<std::uint32_t>(first));
  }
  return owner;
}

}  // namespace poseidon
