#pragma once

// The newest counters of each node, as its heartbeats bring them (NodeCounters in
// proto/poseidon/v1/control.proto). Pure; one thread.
//
// Called by: coordinator/cluster/cluster.h, with each heartbeat and for each status.
// Calls: nothing.

#include <cstddef>
#include <map>

#include "coordinator/members/membership.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

class CounterBook {
 public:
  /// Of each list of refusals. A node that sends more is not one of ours.
  static constexpr int kMaxReasons = 64;
  static constexpr std::size_t kMaxReasonBytes = 64;

  /// Keeps the heartbeat's counters, and its refused messages, in place of the last ones. A
  /// heartbeat without counters changes nothing. Leaves out invalid counters: numbers that are not
  /// finite or negative, reasons beyond the limit. Text becomes fit for one line.
  void take(NodeId node, const v1::Heartbeat& heartbeat);
  void remove(NodeId node) { nodes_.erase(node); }
  /// Null before the first counters. Valid until the next take() or remove().
  const v1::CountersStatus* of(NodeId node) const;

 private:
  std::map<NodeId, v1::CountersStatus> nodes_;
};

}  // namespace poseidon
