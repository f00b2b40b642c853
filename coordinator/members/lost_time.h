#pragma once

// Measures the time in which the coordinator could receive no messages: its process stood still, or
// it was cut off from all nodes. The job's deadlines are extended by that time. Called by:
// coordinator/cluster/job_host.cc. Calls: nothing; pure.
//
// Invariants
//  1. No moment is counted twice.
//  2. A pause up to one lease is not lost time: nodes are given that long anyway.
// Used with Cluster's mutex held (coordinator/cluster/cluster_context.h).

#include <optional>

#include "common/base/clock.h"

namespace poseidon {

class LostTime {
 public:
  explicit LostTime(Nanoseconds lease) : lease_(lease) {}

  /// Call before anything is judged by how long it took. `isolated_since`: the time since which no
  /// node sends messages; empty while one does. Returns the time lost since the last call that is
  /// not counted yet.
  Nanoseconds look(Nanoseconds now, std::optional<Nanoseconds> isolated_since);
  /// As of the last call.
  bool is_cut_off() const { return is_cut_off_; }

 private:
  Nanoseconds count_from(Nanoseconds begin, Nanoseconds now);

  const Nanoseconds lease_;
  Nanoseconds last_look_{0};
  bool is_cut_off_ = false;
  Nanoseconds counted_until_{0};
};

}  // namespace poseidon
