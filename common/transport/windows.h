#pragma once

// The bytes that a process may have in flight to all others together, that is, sent and not yet
// taken by their handlers. The plan sets it for workers; the other windows follow from it.
//
// Called by: coordinator/planning/message_sizes.h, which chooses the window with the chunk size;
// the nodes, which pass it to common/transport/paced_transport.h. Calls: nothing.

#include <cstdint>

namespace poseidon {

/// From a worker to all servers, plus two messages on each: an urgent chunk waits behind it on the
/// wire, 13 ms at 10 Gbit/s. Where links are busier than devices, less is slower: the links run dry
/// before the progress report is back (measured: bench/RESULTS.md).
inline constexpr std::int64_t kWorkerWindowBytes = 16 << 20;
/// For devices that are busier than links: the delay of the first layer's chunks costs more than a
/// link that is idle now and then.
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
