#pragma once

// Which members a job does not trust with a place, and why. Pure.
//
// Called by: staffing.h, when it looks for somebody for a place; exclusion.h, when a node failed.
// Calls: coordinator/members/mishaps.h and unreachable_pairs.h; checkpoint_commit.h says which
// checkpoints are still taken for good.

#include <map>
#include <set>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "coordinator/job/checkpoints/checkpoint_commit.h"
#include "coordinator/job/staffing/participant.h"
#include "coordinator/members/membership.h"
#include "coordinator/members/mishaps.h"
#include "coordinator/members/unreachable_pairs.h"

namespace poseidon {

/// One job's. One thread only.
class Suspects {
 public:
  Suspects(MishapOptions options, const CheckpointCommit& checkpoints)
      : checkpoints_(checkpoints), mishaps_(options) {}

  /// Whether the node may have a place. `needed`: the job cannot go on without it; then a shorter
  /// pause after a mishap does, and it does not matter which checkpoints it could not read.
  bool may_try(const NodeInfo& node, bool needed, Nanoseconds now) const;
  /// The node cannot take part in this job at all.
  void set_unfit(NodeId node) { unfit_.insert(node); }

  /// The newcomer failed before it had completed a new iteration. `cost`: the time that the others
  /// waited for it.
  void count_mishap(const NodeInfo& newcomer, Nanoseconds cost, Nanoseconds now) {
    mishaps_.count(newcomer, cost, now);
  }
  bool has_mishaps(const NodeInfo& node) const { return mishaps_.knows(node); }
  /// The node has completed a new iteration.
  void on_proved(const NodeInfo& node);

  /// A node of this machine could not read the checkpoint. Returns the machines of all that could
  /// not, this one included; `again`: it was one of them already.
  const std::set<std::string>& add_doubt(SnapshotId snapshot, const std::string& machine,
                                         bool& again);

  /// `one` reports in this epoch that it cannot reach `other`.
  void add_unreachable(NodeId one, NodeId other, Epoch epoch) {
    unreachable_.add(one, other, epoch);
  }
  /// One of the two was in such a pair in an earlier epoch.
  bool was_unreachable_before(NodeId one, NodeId other, Epoch epoch) const {
    return unreachable_.known_before(one, other, epoch);
  }
  /// Which of two that do not reach each other is the more likely to be cut off: the one that is so
  /// from more of the others; else the newcomer; else the one that costs less. `other` may be null:
  /// it has no place, or is not known.
  const Participant& cut_off(const Participant& failed, const Participant* other) const;
  /// From how many nodes this one is cut off.
  std::size_t cut_off_from(NodeId node) const { return unreachable_.count(node); }
  /// A new iteration shows that all nodes reach each other.
  void forget_unreachable() { unreachable_.clear(); }
  void on_gone(NodeId node) { unreachable_.forget(node); }

 private:
  bool is_doubter(const NodeInfo& node) const;

  const CheckpointCommit& checkpoints_;
  std::set<NodeId> unfit_;
  Mishaps mishaps_;
  UnreachablePairs unreachable_;
  /// Machines of the newcomers that could not read a checkpoint.
  std::map<SnapshotId, std::set<std::string>> distrusted_machines_;
};

}  // namespace poseidon
