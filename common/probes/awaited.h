#pragma once

// What a node waits for just now, for heartbeats: from it the coordinator says why a job stands
// still (coordinator/job/reports/standstill.h).
//
// Called by: sync/client/sync_client.h and server/server_node.h, which look when a heartbeat is
// due; common/node/node_report.h, which sends it. Calls: nothing.

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/threads/mutex.h"

namespace poseidon {

/// Most entries that a worker, a relay or a server tells of ...
inline constexpr std::size_t kMostAwaited = 4;
/// ... and that a heartbeat has: a worker may have a relay.
inline constexpr int kMostAwaitedInHeartbeat = 2 * kMostAwaited;

/// Data of an iteration that a node lacks. A worker waits for parameters of a server (or of its
/// group's relay) or for factors of other workers; a server or relay waits for gradients.
struct AwaitedData {
  LayerIndex layer;
  std::optional<ChunkId> chunk;       ///< absent: factors
  Iteration iteration = 0;            ///< whose gradient it is, or whose step made it
  std::vector<WorkerRank> ranks;      ///< who has not sent it; empty where a server owes it
  std::optional<ServerIndex> server;  ///< that owes it, or that waits for the ranks

  bool operator==(const AwaitedData&) const = default;
};

/// Any thread.
class AwaitedProbe {
 public:
  /// The most urgent first.
  void set(std::vector<AwaitedData> awaited) {
    const MutexLock lock(mutex_);
    awaited_ = std::move(awaited);
  }
  std::vector<AwaitedData> get() const {
    const MutexLock lock(mutex_);
    return awaited_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<AwaitedData> awaited_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace poseidon
