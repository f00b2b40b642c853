#pragma once

// Assigns chunks to servers. Pure and deterministic.
//
// Called by: the planner, after common/plan/chunking.h has cut the layers; it writes the result
// into the plan. Calls: nothing.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"

namespace poseidon {

/// From the last chunk to the first, each to the server with the least bytes so far, ties to the
/// lower server (list scheduling: Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J.
/// Appl. Math. 17, 1969). So for any number of last layers, the servers' chunks of them differ by
/// at most one. These are in flight when an iteration ends, and a server with more of them would
/// delay all workers while other links are idle. A layer of n full chunks is spread over min(n,
/// servers) servers: every server helps with every large layer.
///
/// With shares: each chunk goes to the server that would finish its bytes first at a speed
/// proportional to its share; a server without a share gets nothing. Equal shares: as above.
///
/// `chunk_bytes` in ChunkId order, each >= 0; `servers` >= 1. The result is in ChunkId order.
std::vector<ServerIndex> place_chunks(absl::Span<const std::int64_t> chunk_bytes,
                                      std::uint32_t servers);

/// `shares` by ServerIndex, each >= 0, at least one above 0.
std::vector<ServerIndex> place_chunks(absl::Span<const std::int64_t> chunk_bytes,
                                      const std::vector<double>& shares);

}  // namespace poseidon
