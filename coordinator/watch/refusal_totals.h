#pragma once

// Counts refused messages by reason: the coordinator's own, and what nodes report in heartbeats.
// Called by: coordinator/cluster/watch.cc. Calls: nothing; pure.
//
// Invariant: a node can make the coordinator keep at most 64 reasons of 64 bytes each; what nodes
// that left had reported is kept within the same bound.
// Used with Cluster's mutex held (coordinator/cluster/cluster_context.h).

#include <cstdint>
#include <map>
#include <string>

#include "common/base/ids.h"
#include "coordinator/members/membership.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

class RefusalTotals {
 public:
  using ByReason = std::map<std::string, std::uint64_t>;

  /// One more that the coordinator refused. Returns how many there are of this reason now.
  std::uint64_t add_own(const std::string& reason) { return ++own_[reason]; }
  /// The node's running totals.
  void report(NodeId node, const v1::Heartbeat& heartbeat);
  /// The node left; its totals stay in sum().
  void on_departure(NodeId node);

  const ByReason& own() const { return own_; }
  /// The coordinator's own and those of all nodes, also of nodes that left.
  ByReason sum() const;

 private:
  ByReason own_;
  std::map<NodeId, ByReason> of_nodes_;  ///< running totals of members
  ByReason departed_;                    ///< of nodes that left
};

}  // namespace poseidon
