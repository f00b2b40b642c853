#pragma once

// Takes a job: checks the request, makes its description, run directory and first record, and
// passes the job to JobHost. Listens to the run directory until it is closed. Called by:
// cluster.cc, checkpoint_calls.cc (restore), returns.cc (a job that had not begun). Calls:
// JobResolver, planning/, StateDirectory, RunDirectory, JobHost.
//
// Invariants
//  1. There is one job at a time, and one submission at a time.
//  2. The job's record is on the disk before its run directory is touched: a process that dies from
//     there on leaves a job that the next one knows.
//  3. The record goes when all files of a job that ended are closed. Threads: submit takes
//     Cluster's mutex where it needs it and blocks on the disk without it. The run directory's
//     writer thread calls back without the mutex, and it is taken here. All else is used with the
//     mutex held, except describe_again and run_events, which need none.

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/cluster/job_host.h"
#include "coordinator/cluster/status_report.h"
#include "coordinator/planning/jobs/job_resolver.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

class Submissions {
 public:
  /// All outlive it, and the run directories opened with run_events.
  Submissions(ClusterContext& context, JobResolver resolver, const JobSurroundings& parts,
              JobHost& host, const StatusReport& report)
      : context_(context),
        resolver_(std::move(resolver)),
        watch_(parts.watch),
        checkpoints_(parts.checkpoints),
        output_(parts.output),
        host_(host),
        report_(report) {}

  /// `source`: continue from this checkpoint, whose job is in the request.
  absl::StatusOr<v1::SubmitResponse> submit(const v1::SubmitRequest& request,
                                            std::optional<SnapshotId> source);
  /// A program names its job: starts it, or checks that the active one is equal.
  absl::StatusOr<v1::DeclareResponse> declare(const v1::DeclareRequest& request);
  bool is_under_way() const { return is_under_way_; }

  /// Of a job that an earlier process took; without id, epoch and committed checkpoints.
  absl::StatusOr<JobDescription> describe_again(const v1::SubmitRequest& request,
                                                bool from_checkpoint) const;
  /// Tells the job of the checkpoint that it begins from. Takes the mutex. In the run's own
  /// directory the job is the same; in another directory it is a branch of it.
  bool is_own_directory(std::optional<SnapshotId> source, const std::filesystem::path& path) const;
  absl::Status add_source(SnapshotId source, JobDescription& description);
  /// Events of the run directory of the job.
  RunDirectory::Events run_events();

 private:
  absl::Status reserve();
  std::optional<absl::StatusOr<v1::DeclareResponse>> declared_already(
      const v1::SubmitRequest& request, const std::string& name) const;
  JobDescription describe(const v1::SubmitRequest& request, const ResolvedJob& resolved,
                          const std::string& run_directory) const;
  PlanMemory earlier_plans(const std::string& key) const;
  void on_closed();

  ClusterContext& context_;
  const JobResolver resolver_;
  Watch& watch_;
  CheckpointBook& checkpoints_;
  RunOutput& output_;
  JobHost& host_;
  const StatusReport& report_;
  bool is_under_way_ = false;
};

}  // namespace poseidon
