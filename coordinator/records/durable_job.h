#pragma once

// The record of the current job on the coordinator's disk, from which another process can resume
// the job. Pure: converts to JSON and back, and checks everything.
//
// Called by: coordinator/cluster/run/job_record.h, which stores it when training starts, when a
// recovery begins, and when there is a checkpoint to go back to; coordinator/cluster/returns.h,
// which reads it in the next process. Calls: common/plan/plan.h, common/checkpoint/checkpoint.h.
// The run's progress is in metrics.jsonl, not here.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint.h"
#include "common/plan/plan.h"
#include "common/wire/snapshot.h"
#include "coordinator/members/membership.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

struct DurableJob {
  std::string id;
  std::string job_json;       ///< as submitted
  std::string run_directory;  ///< absolute
  std::uint32_t workers = 0;  ///< as in SubmitRequest
  std::uint32_t servers = 0;
  /// A checkpoint that the operator chose to resume from.
  std::optional<SnapshotId> source;
  /// The current epoch, or the last one.
  struct Running {
    Plan plan;  ///< without prediction and calibration
    std::string plan_basis;
    std::vector<NodeInfo> workers;     ///< by rank
    std::vector<NodeInfo> servers;     ///< by index
    Iteration first_iteration = 0;     ///< of the epoch
    std::int64_t begun_with = 1;       ///< workers of the run's first epoch
    std::int64_t samples = 0;          ///< taken before the epoch
    std::int64_t started_unix_ms = 0;  ///< when Start was sent
    /// The cause of the recovery in progress, for people; "": the job trains.
    std::string recovering_from;
    std::vector<NodeId> lost;  ///< nodes lost in that recovery
    /// The epoch has ended and its nodes were told: the next one begins from the newest checkpoint.
    /// `workers` and `servers` are then the current nodes of the job, which may differ from the
    /// plan's.
    bool stopped = false;
    /// There are checkpoints to return to; it is an error when none of them can be read.
    bool has_checkpoints = false;
    /// Checkpoints that the run has rolled back past: no epoch begins from them.
    std::vector<SnapshotId> abandoned;
    std::optional<DataIdentity> data;  ///< identity of the training data
  };
  /// Absent: training has not started; the job starts from the beginning.
  std::optional<Running> running;
};

std::string durable_job_to_json(const DurableJob& job);

/// INVALID_ARGUMENT names what is wrong. With `running`, the plan is valid, and, unless `stopped`,
/// has as many workers and servers, at the same addresses, as there are; all ids differ.
absl::StatusOr<DurableJob> durable_job_from_json(std::string_view text);

/// The number of completed iterations, given the number in the metrics on disk: at least those
/// before the epoch. For an ended epoch the metrics may already be rolled back for the next one,
/// which begins from one of these checkpoints.
Iteration completed_iterations(const DurableJob::Running& running,
                               const std::vector<CheckpointManifest>& committed, Iteration told);

/// The status before any job was submitted.
v1::GetStatusResponse status_without_job();

/// The message when jobs were submitted but neither a record nor an outcome of the last one exists.
/// `newest` of all checkpoints; null: none.
std::string unknown_end_text(const CheckpointManifest* newest);

/// The outcome of a job, as in `status`, without its nodes and layers.
absl::StatusOr<std::string> outcome_to_json(const v1::GetStatusResponse& status);
/// INVALID_ARGUMENT for text that is not an outcome. Ignores fields of later versions.
absl::StatusOr<v1::GetStatusResponse> outcome_from_json(std::string_view text);

}  // namespace poseidon
