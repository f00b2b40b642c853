#pragma once

// What is counted of a job while it runs, for metrics.

#include <array>
#include <cstddef>
#include <cstdint>

namespace poseidon {

/// Why an epoch of a job in progress ends before the job does.
enum class EpochEnd : std::uint8_t {
  kWorkerLost,
  kServerLost,
  kPeerUnreachable,       ///< all are here, but one does not reach another
  kCheckpointUnreadable,  ///< the checkpoint that was to be gone on from
  kStandstill,            ///< all are here, but no iteration ends
  kNodeLeaves,            ///< it said goodbye, or an operator drains it
  kNodeUnfit,    ///< a node that came later cannot take part, or died before it had trained
  kMoreWorkers,  ///< no trouble: others are taken in
  kMoreServers,  ///< no trouble: likewise
  kBetterPlan,   ///< no trouble: measured times say so
  kCount         ///< number of reasons, not one itself
};

constexpr const char* epoch_end_name(EpochEnd reason) {
  switch (reason) {
    case EpochEnd::kWorkerLost:
      return "worker_lost";
    case EpochEnd::kServerLost:
      return "server_lost";
    case EpochEnd::kPeerUnreachable:
      return "peer_unreachable";
    case EpochEnd::kCheckpointUnreadable:
      return "checkpoint_unreadable";
    case EpochEnd::kStandstill:
      return "standstill";
    case EpochEnd::kNodeLeaves:
      return "node_leaves";
    case EpochEnd::kNodeUnfit:
      return "node_unfit";
    case EpochEnd::kMoreWorkers:
      return "more_workers";
    case EpochEnd::kMoreServers:
      return "more_servers";
    case EpochEnd::kBetterPlan:
      return "better_plan";
    case EpochEnd::kCount:
      break;
  }
  return "";
}

struct JobCounts {
  std::array<std::uint64_t, static_cast<std::size_t>(EpochEnd::kCount)> recoveries{};
  std::uint64_t checkpoints_committed = 0;
  std::uint64_t checkpoints_failed = 0;
  /// Batches that went through the network, there or back, of all workers, in tests too.
  std::uint64_t passes = 0;

  std::uint64_t& of(EpochEnd reason) { return recoveries[static_cast<std::size_t>(reason)]; }
  std::uint64_t of(EpochEnd reason) const { return recoveries[static_cast<std::size_t>(reason)]; }

  JobCounts& operator+=(const JobCounts& other) {
    for (std::size_t i = 0; i < recoveries.size(); ++i) recoveries[i] += other.recoveries[i];
    checkpoints_committed += other.checkpoints_committed;
    checkpoints_failed += other.checkpoints_failed;
    passes += other.passes;
    return *this;
  }
};

}  // namespace poseidon
