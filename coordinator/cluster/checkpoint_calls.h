#pragma once

// Operators' calls about checkpoints: list, save one now, locate one for export, restore a job from
// one, remove some.
// Called by: cluster.cc, for service.cc. Calls: CheckpointBook, JobHost, Submissions.
//
// Invariants
//  1. A checkpoint that the active job began from, or that is its own, is removed by no operator.
//  2. While a job is being submitted none is removed: the job may begin at it.
//  3. A checkpoint that was located stays for kCheckpointHold.
// Threads: every method takes Cluster's mutex itself. None blocks on the network or the disk,
// except restore, which submits a job. `request` only asks for a checkpoint: the operator's program
// polls `list` until it is there.

#include "absl/status/statusor.h"
#include "coordinator/cluster/job_host.h"
#include "coordinator/cluster/submissions.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

class CheckpointCalls {
 public:
  /// All outlive it.
  CheckpointCalls(ClusterContext& context, const JobSurroundings& parts, JobHost& host,
                  Submissions& submissions)
      : context_(context),
        membership_(parts.membership),
        watch_(parts.watch),
        checkpoints_(parts.checkpoints),
        host_(host),
        submissions_(submissions) {}

  absl::StatusOr<v1::ListCheckpointsResponse> list(const v1::ListCheckpointsRequest& request);
  absl::StatusOr<v1::RequestCheckpointResponse> request(
      const v1::RequestCheckpointRequest& request);
  absl::StatusOr<v1::LocateCheckpointResponse> locate(const v1::LocateCheckpointRequest& request);
  absl::StatusOr<v1::SubmitResponse> restore(const v1::RestoreCheckpointRequest& request);
  absl::StatusOr<v1::RemoveCheckpointsResponse> remove(const v1::RemoveCheckpointsRequest& request);

 private:
  ClusterContext& context_;
  const Membership& membership_;
  Watch& watch_;
  CheckpointBook& checkpoints_;
  JobHost& host_;
  Submissions& submissions_;
};

}  // namespace poseidon
