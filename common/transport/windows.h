#pragma once

// How much a process may have under way to all others together, that is sent and not yet taken by
// their handlers. A plan says it for workers; the others follow. Bytes.
//
// Before: coordinator/planning/message_sizes.h chooses it with the size of chunks. After:
// common/transport/paced_transport.h holds its streams to it.

#include <cstdint>

namespace poseidon {

/// From a worker to all servers, but for two messages on each: what an urgent chunk finds in front
/// of it on the wire, 13 ms at 10 Gbit/s. Where links are busier than devices less is slower: they
/// run dry before the news of what was taken is back (measured: bench/RESULTS.md).
inline constexpr std::int64_t kWorkerWindowBytes = 16 << 20;
/// Where devices are busier than links: what waits for the first layer's chunks counts for more
/// than a link that now and then has nothing to send.
inline constexpr std::int64_t kShortWorkerWindowBytes = kWorkerWindowBytes / 2;

inline constexpr std::int64_t kMinWorkerWindowBytes = 64 << 10;
inline constexpr std::int64_t kMaxWorkerWindowBytes = 1 << 30;

/// From a server to all workers.
constexpr std::int64_t server_window_bytes(std::int64_t worker_window_bytes = kWorkerWindowBytes) {
  return 2 * worker_window_bytes;
}
/// From a worker to the other workers, at both ends.
constexpr std::int64_t peer_window_bytes(std::int64_t worker_window_bytes = kWorkerWindowBytes) {
  return 2 * worker_window_bytes;
}

}  // namespace poseidon
