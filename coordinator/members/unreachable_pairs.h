#pragma once

// Which node does not reach which, since the last iteration that was new: a network that is torn in
// part keeps two nodes apart that both reach the coordinator, and only what several of them say
// tells whose card, cable or firewall it is. Pure.
//
// Before: job_run.h heard that a node does not get an answer from another. After: job_run.h asks
// whom the job should try to do without.

#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "common/base/ids.h"
#include "coordinator/members/membership.h"

namespace poseidon {

class UnreachablePairs {
 public:
  /// `one` says in this epoch that it does not reach `other`.
  void add(NodeId one, NodeId other, Epoch epoch);
  /// One of the two was of such a pair in an earlier epoch: what is between them lasts.
  bool known_before(NodeId one, NodeId other, Epoch epoch) const;
  /// From how many others it is cut off, whoever said so.
  std::size_t count(NodeId node) const;
  /// The node is gone; what is started in its place has another id.
  void forget(NodeId node);
  /// An iteration that is new shows that all reach each other.
  void clear() { pairs_.clear(); }

 private:
  std::map<std::pair<NodeId, NodeId>, Epoch> pairs_;  ///< the lower id first: in which epoch first
};

}  // namespace poseidon
