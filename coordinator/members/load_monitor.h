#pragma once

// Computes the recent load of each node's process on its machine from the running totals in
// heartbeats. Pure.
//
// Called by: coordinator/cluster/cluster.h for each heartbeat; `poseidon status`, `poseidon top`
// and `poseidon doctor` show which nodes share a machine and which lack cores.
// Calls: sample_window.h.

#include <cstdint>
#include <map>
#include <optional>

#include "common/base/clock.h"
#include "coordinator/members/membership.h"
#include "coordinator/members/sample_window.h"

namespace poseidon {

/// As NodeLoad of proto/poseidon/v1/control.proto.
struct LoadTotals {
  std::uint64_t machine = 0;                         ///< equal on one machine; 0: unknown
  std::uint32_t cores = 0;                           ///< that the process may use
  double cpu_seconds = 0.0, cpu_wait_seconds = 0.0;  ///< of all its threads together
  double disk_seconds = 0.0;       ///< servers: time in which the disk thread wrote
  std::uint64_t disk_bytes = 0;    ///< servers: bytes written
  std::uint64_t disk_waiting = 0;  ///< servers: pieces that wait for the disk now; not a total
};

/// As LoadStatus.
struct LoadRates {
  std::uint64_t machine = 0;                    ///< as in LoadTotals
  std::uint32_t cores = 0;                      ///< likewise
  double cores_used = 0.0, cores_wanted = 0.0;  ///< wanted: more that it would have used
  double disk_share = 0.0;                      ///< of the time, 0..1
  double disk_bytes_per_s = 0.0;                ///< while it was writing
  std::uint64_t disk_waiting = 0;               ///< pieces
};

class LoadMonitor {
 public:
  /// Totals that decrease mean a new process: drops its older samples. (The time without a core may
  /// decrease when a thread ends.)
  void add(NodeId node, const LoadTotals& totals, Nanoseconds now);
  void remove(NodeId node) { nodes_.erase(node); }
  /// nullopt before two heartbeats.
  std::optional<LoadRates> rates(NodeId node) const;

 private:
  struct Node {
    SampleWindow<LoadTotals> samples;
    double disk_bytes_per_s = 0.0;  ///< when it last wrote
  };
  std::map<NodeId, Node> nodes_;
};

}  // namespace poseidon
