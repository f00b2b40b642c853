#pragma once

// Which server owns which chunk. Pure and deterministic.
// Before: common/plan/chunking.h cut the layers. After: the planner writes the answer into the
// plan.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"

namespace poseidon {

/// From the last chunk to the first, each to the server with the least bytes so far, ties to the
/// lower server (list scheduling: Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J.
/// Appl. Math. 17, 1969). So of the last layers, however many one looks at, no server has a chunk
/// more than another: they are what is still under way when an iteration ends, and a server that
/// had more of them would keep all workers waiting while the other links idle. A layer of n full
/// chunks is spread over min(n, servers) servers: every server helps with every large layer.
///
/// With shares: each chunk goes to the server that would be done with its bytes first, were it as
/// fast as its share says; a server without a share gets nothing. Equal shares: as above.
///
/// `chunk_bytes` in ChunkId order, each >= 0; `servers` >= 1. The result is in ChunkId order.
std::vector<ServerIndex> place_chunks(absl::Span<const std::int64_t> chunk_bytes,
                                      std::uint32_t servers);

/// `shares` by ServerIndex, each >= 0, at least one above 0.
std::vector<ServerIndex> place_chunks(absl::Span<const std::int64_t> chunk_bytes,
                                      const std::vector<double>& shares);

}  // namespace poseidon
