#pragma once

// Nodes that are to go: those that said goodbye (Goodbye), and those that an operator drains. The
// job goes on without them, and then they are released.
// Called by: cluster.cc. Calls: Membership marks them, JobHost's job ends the epoch that uses them.
//
// Invariants
//  1. A node that said goodbye is released once, when the job needs nothing of it any more.
//  2. What an operator drained stays a member without work, until that is undone or it leaves. The
//     next process of the node, and the next process of the coordinator, know nothing of it.
// Used with Cluster's mutex held (cluster_context.h).

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/cluster/cluster_context.h"
#include "coordinator/cluster/job_host.h"
#include "coordinator/cluster/watch.h"
#include "coordinator/members/membership.h"
#include "coordinator/members/node_streams.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

class Leaving {
 public:
  /// All outlive it.
  Leaving(const ClusterContext& context, Watch& watch, NodeStreams& streams, Membership& membership,
          JobHost& host)
      : context_(context), watch_(watch), streams_(streams), membership_(membership), host_(host) {}

  void on_goodbye(NodeId from, const std::string& reason);
  /// NOT_FOUND: no member has this address. FAILED_PRECONDITION: the job could not go on without
  /// the node.
  absl::StatusOr<v1::DrainNodeResponse> drain(const v1::DrainNodeRequest& request);
  /// Releases those that the job does not need any more.
  void tick();

 private:
  bool is_needed(NodeId id) const;

  const ClusterContext& context_;
  Watch& watch_;
  NodeStreams& streams_;
  Membership& membership_;
  JobHost& host_;
  std::set<NodeId> goodbyes_;  ///< not released yet
};

}  // namespace poseidon
