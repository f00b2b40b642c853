#pragma once

// Tracks which nodes cannot reach each other since the last new iteration. A partial network
// failure separates two nodes that both reach the coordinator, and only several reports together
// show whose card, cable or firewall is at fault. Pure.
//
// Called by: coordinator/job/staffing/suspects.h, when a node reports that another does not answer,
// and when it chooses the node to exclude. Calls: nothing.

#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "common/base/ids.h"
#include "coordinator/members/membership.h"

namespace poseidon {

class UnreachablePairs {
 public:
  /// `one` reports in this epoch that it cannot reach `other`.
  void add(NodeId one, NodeId other, Epoch epoch);
  /// Whether one of the two was in such a pair in an earlier epoch: the fault persists.
  bool known_before(NodeId one, NodeId other, Epoch epoch) const;
  /// The number of nodes that it cannot reach or that cannot reach it.
  std::size_t count(NodeId node) const;
  /// The node is gone; a replacement has another id.
  void forget(NodeId node);
  /// A new iteration shows that all nodes reach each other.
  void clear() { pairs_.clear(); }

 private:
  std::map<std::pair<NodeId, NodeId>, Epoch> pairs_;  ///< lower id first: first epoch of a report
};

}  // namespace poseidon
