#pragma once

// What the coordinator keeps on disk of the job in progress, so that another process can go on with
// it. Pure: to JSON and back, trusting nothing.
//
// Before: cluster.cc stores it when the job was submitted, when training starts, when a
// recovery begins, and when there is a checkpoint to go back to. After: cluster_return.cc, in the
// next process. How far the run is, metrics.jsonl says.

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
  /// A checkpoint that the operator chose to go on from.
  std::optional<SnapshotId> source;
  /// The epoch in force, or the last one.
  struct Running {
    Plan plan;  ///< without prediction and calibration
    std::string plan_basis;
    std::vector<NodeInfo> workers;     ///< by rank
    std::vector<NodeInfo> servers;     ///< by index
    Iteration first_iteration = 0;     ///< of the epoch
    std::int64_t begun_with = 1;       ///< workers of the run's first epoch
    std::int64_t samples = 0;          ///< taken before the epoch
    std::int64_t started_unix_ms = 0;  ///< when Start was sent
    /// From what the job recovers, for people; "": it trains.
    std::string recovering_from;
    std::vector<NodeId> lost;  ///< its nodes that are
    /// The epoch is over, its nodes were told so: the next one begins from the newest checkpoint.
    /// `workers` and `servers` are those of the places then; the plan may have had others.
    bool stopped = false;
    /// There are checkpoints to go back to: where none of them can be read, something is wrong.
    bool has_checkpoints = false;
    /// Checkpoints of courses that the run has left: no epoch begins there.
    std::vector<SnapshotId> abandoned;
    std::optional<DataIdentity> data;  ///< what it trains on
  };
  /// Absent: training has not started, and the job begins anew.
  std::optional<Running> running;
};

std::string durable_job_to_json(const DurableJob& job);

/// INVALID_ARGUMENT names what is wrong. With `running`, the plan is valid, and, unless `stopped`,
/// has as many workers and servers, at the same addresses, as there are; all ids differ.
absl::StatusOr<DurableJob> durable_job_from_json(std::string_view text);

/// How many iterations the run has behind it, of whose metrics so many are on disk: those before
/// the epoch at least. Of an epoch that is over they may have been taken back for the next one,
/// which begins from one of these checkpoints.
Iteration completed_iterations(const DurableJob::Running& running,
                               const std::vector<CheckpointManifest>& committed, Iteration told);

/// What `status` tells where no job was ever submitted.
v1::GetStatusResponse status_without_job();

/// What it says where jobs were submitted, but neither a record nor an outcome of the last one is
/// there. `newest`: of all checkpoints; null where there is none.
std::string unknown_end_text(const CheckpointManifest* newest);

/// How a job ended, as `status` tells it: the fields of the job alone, not its nodes and layers.
absl::StatusOr<std::string> outcome_to_json(const v1::GetStatusResponse& status);
/// INVALID_ARGUMENT for what is no outcome. What a later version has added is left out.
absl::StatusOr<v1::GetStatusResponse> outcome_from_json(std::string_view text);

}  // namespace poseidon
