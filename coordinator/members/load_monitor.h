#pragma once

// What each node's process costs its machine over the last seconds, out of running totals in
// heartbeats. Pure.
//
// Before: coordinator/cluster/cluster.h took a heartbeat. After: `poseidon status`, `poseidon top`
// and `poseidon doctor` show who shares a machine, and who wants more of it than there is.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "common/base/clock.h"
#include "coordinator/members/membership.h"

namespace poseidon {

/// As NodeLoad of proto/poseidon/v1/control.proto.
struct LoadTotals {
  std::uint64_t machine = 0;                         ///< equal on one machine; 0: unknown
  std::uint32_t cores = 0;                           ///< that the process may use
  double cpu_seconds = 0.0, cpu_wait_seconds = 0.0;  ///< of all its threads together
  double disk_seconds = 0.0;                         ///< servers: that the disk thread was writing
  std::uint64_t disk_bytes = 0;                      ///< servers: what it wrote
  std::uint64_t disk_waiting = 0;  ///< servers: pieces that wait for it; no total, but just now
};

/// As LoadStatus.
struct LoadRates {
  std::uint64_t machine = 0;                    ///< as in LoadTotals
  std::uint32_t cores = 0;                      ///< likewise
  double cores_used = 0.0, cores_wanted = 0.0;  ///< wanted: besides those, had they been free
  double disk_share = 0.0;                      ///< of the time, 0..1
  double disk_bytes_per_s = 0.0;                ///< while it was writing
  std::uint64_t disk_waiting = 0;               ///< pieces
};

class LoadMonitor {
 public:
  static constexpr Nanoseconds kWindow = std::chrono::seconds(5);
  static constexpr std::size_t kMaxSamples = 64;  ///< per node; older ones go first

  /// Totals that go back mean a new process: its older samples are dropped. (The time without a
  /// core may go back, when a thread ends.)
  void add(NodeId node, const LoadTotals& totals, Nanoseconds now);
  void remove(NodeId node) { nodes_.erase(node); }
  /// Nothing before two heartbeats.
  std::optional<LoadRates> rates(NodeId node) const;

 private:
  struct Sample {
    Nanoseconds time;
    LoadTotals totals;
  };
  struct Node {
    std::deque<Sample> samples;
    double disk_bytes_per_s = 0.0;  ///< when it last wrote
  };
  std::map<NodeId, Node> nodes_;
};

}  // namespace poseidon
