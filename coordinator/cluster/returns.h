#pragma once

// Handles returns: of nodes whose stream broke, and of the coordinator itself after its process
// died. Called by: cluster.cc. Calls: JobHost, Submissions, StateDirectory, Membership.
//
// Invariants
//  1. A node reattaches only as the process, and in the place, that the job knows; otherwise it
//     joins as a new node, and its earlier membership ends first.
//  2. restore continues an earlier coordinator's job from its record and its run directory, or
//     returns why it cannot. A job that has trained never starts again from the beginning.
//  3. When that coordinator died between ending an epoch and recording that, a node that is beyond
//     the recorded epoch ends it here too. Threads: restore and the functions that it calls block
//     on the disk, and take Cluster's mutex when they need it. It runs before there are streams and
//     calls. All else is used with the mutex held.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/cluster/job_host.h"
#include "coordinator/cluster/submissions.h"
#include "coordinator/records/durable_job.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

class Returns {
 public:
  /// All outlive it.
  Returns(ClusterContext& context, const JobSurroundings& parts, JobHost& host,
          Submissions& submissions)
      : context_(context),
        membership_(parts.membership),
        streams_(parts.streams),
        watch_(parts.watch),
        traces_(parts.traces),
        checkpoints_(parts.checkpoints),
        host_(host),
        submissions_(submissions) {}

  // ---- nodes ----
  /// The stream of a node of the job broke; the node keeps its place for a while.
  void detach(NodeId node, const std::string& reason);
  /// The node has its place back, on this stream. False: it joins as a new node.
  bool reattach(NodeLink* link, NodeInfo node, const v1::Resume& resume);
  bool is_beyond_epoch(const NodeInfo& node, const v1::Join& join) const;
  void end_outdated_epoch(const NodeInfo& node, const v1::Join& join);
  void make_room(const NodeInfo& node, const v1::Join& join);
  v1::CoordinatorMessage joined_message(NodeId id, const std::string& note) const;

  // ---- the coordinator ----
  /// As Cluster::restore.
  absl::Status restore();
  /// An earlier process's last job; shown while there is no job.
  const v1::GetStatusResponse& last_job() const { return last_job_; }

 private:
  void recall_last_job();
  absl::Status go_on_with(DurableJob record);
  absl::Status wait_again(const DurableJob& record, const v1::SubmitRequest& request,
                          JobDescription description);
  absl::StatusOr<std::vector<CheckpointManifest>> checkpoints_of(const DurableJob& record) const;

  ClusterContext& context_;
  Membership& membership_;
  NodeStreams& streams_;
  Watch& watch_;
  Traces& traces_;
  CheckpointBook& checkpoints_;
  JobHost& host_;
  Submissions& submissions_;
  v1::GetStatusResponse last_job_ = status_without_job();
  std::optional<Epoch> resumed_epoch_;  ///< in which an earlier coordinator's job was continued
};

}  // namespace poseidon
