#pragma once

// A job as it is submitted, and how long it waits for what.
//
// Called by: coordinator/cluster/submissions.h fills it; all of coordinator/job reads it.
// Calls: nothing. What depends on the job format and the networks comes as pure functions, from
// coordinator/planning/jobs/job_resolver.h.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/files/safetensors.h"
#include "common/plan/calibration.h"
#include "common/plan/plan.h"
#include "common/plan/plan_pin.h"
#include "coordinator/job/checkpoints/checkpoint_commit.h"
#include "coordinator/job/plan_memory.h"
#include "coordinator/job/reports/calibration_run.h"
#include "coordinator/job/reports/idle_recoveries.h"
#include "coordinator/job/reports/standstill.h"
#include "coordinator/members/mishaps.h"
#include "coordinator/planning/calibrate.h"
#include "coordinator/planning/jobs/elastic_job.h"

namespace poseidon {

struct JobRunOptions {
  Nanoseconds waiting_timeout = std::chrono::seconds(120);   ///< until enough nodes are there
  Nanoseconds preparing_timeout = std::chrono::minutes(10);  ///< each of the two preparing states
  Nanoseconds progress_timeout = std::chrono::minutes(30);   ///< without any accepted report
  Nanoseconds upload_timeout = std::chrono::minutes(10);     ///< all finished, but no model yet
  Nanoseconds halting_timeout = std::chrono::minutes(1);     ///< until all have halted
  Nanoseconds saving_timeout = std::chrono::minutes(5);      ///< of what is held in memory
  /// From the end of training until its last checkpoint is committed; then the job is done without.
  Nanoseconds last_checkpoint_timeout = std::chrono::minutes(2);
  /// Beyond the job's replace_timeout: until there are enough nodes again.
  Nanoseconds recovery_timeout = std::chrono::minutes(10);
  /// After more workers have come, until a checkpoint is asked for, from which to go on with them:
  /// others may come with them. A checkpoint that is committed sooner will do.
  Nanoseconds growth_delay = std::chrono::seconds(10);
  /// The same of servers that are missing.
  Nanoseconds server_delay = std::chrono::seconds(2);
  /// Between two attempts at a change, and before another plan is tried.
  Nanoseconds change_pause = std::chrono::minutes(1);
  /// While a change is asked for in vain: until it is asked for again.
  Nanoseconds ask_pause = std::chrono::seconds(2);
  MishapOptions mishaps;
  int max_plan_changes = 4;  ///< of one run: two plans that take turns must not go on for ever
  IdleRecoveriesOptions idle_recoveries;
  StandstillOptions standstill;
  CheckpointCommitOptions checkpoints;
  CalibrationOptions calibration;
};

struct JobDescription {
  std::string id;
  std::string name;
  Epoch epoch;
  std::uint32_t workers = 0;  ///< exactly so many; 0: min_workers up to max_workers
  std::uint32_t servers = 0;  ///< exactly so many; 0: all there are, at least one
  std::int64_t min_workers = 1;
  std::int64_t max_workers = 64;
  std::int64_t batch_size = 0;  ///< per worker
  Iteration iterations = 0;
  /// Of programs outside (models/net/model_layout.h).
  struct Programs {
    bool train_it = false;  ///< its workers serve this job alone
    /// It ends when all workers have finished after as many iterations; `iterations` is a bound.
    bool end_it = false;
    bool step = false;  ///< and servers only sum: checkpoints would lack the parameters
  };
  Programs programs;
  /// Pure; of the step that ends an iteration.
  std::function<double(Iteration)> learning_rate;
  std::string job_json;  ///< as submitted
  std::string run_directory;
  struct Checkpoints {
    std::int64_t chunk_bytes = 2 << 20;  ///< SyncSpec::largest_chunk_bytes()
    std::int64_t keep = 3;               ///< checkpoint.keep
    std::int64_t replicas = 1;           ///< checkpoint.replicas
    Iteration every = 0;                 ///< checkpoint.every_iterations
  };
  Checkpoints checkpoints;
  /// test_every_iterations; 0: only at the end, nothing: there is no test data.
  std::optional<Iteration> test_every;
  /// On disk already: this job's, and the one that it goes on from, which may be another job's.
  std::vector<CheckpointManifest> committed;
  /// Of `committed`: begin there and not at iteration 0, which is before the last iteration.
  std::optional<SnapshotId> source;
  Nanoseconds replace_timeout = std::chrono::seconds(30);
  using Addresses = std::vector<std::string>;
  /// Pure; (worker addresses by rank, server addresses by index): why nothing is measured before
  /// this job; "" when it should be.
  std::function<std::string(const Addresses&, const Addresses&)> why_no_calibration;
  /// Pure; whether a file with this header is a model of the job. Null: any safetensors file is.
  std::function<absl::Status(const SafetensorsHeader&)> check_model;
  /// Pure; what becomes of the job with so many workers. Null: only ever with as many.
  std::function<absl::StatusOr<ElasticJob>(std::uint32_t begun_with, std::uint32_t workers)>
      with_workers;
  struct Plans {
    /// Whether a plan that measured times say is better takes the place of the one in force.
    bool replan = true;
    std::string key;     ///< under which StateDirectory keeps them; "": nothing is kept
    PlanMemory earlier;  ///< what it had when the job was described
  };
  Plans plans;
  struct PlanRequest {
    Epoch epoch;
    std::int64_t batch_size = 0;
    Addresses workers, servers;
    Addresses worker_machines, server_machines;  ///< as in PlannerInput
    std::optional<Calibration> calibration;
    /// Repeat these schemes and, where there are as many servers, chunks.
    std::optional<PlanPin> keep;
    /// Groups to keep, or that there are none; unset: those of the job's plan, or by machine.
    std::optional<std::vector<WorkerRank>> leaders;
    std::optional<EarlierPlan> earlier;  ///< as in PlannerInput
  };
  std::function<absl::StatusOr<Plan>(PlanRequest)> make_plan;  ///< pure
  /// Pure; a plan with a calibration, the layers' times now, what to remember. May be null: nobody
  /// looks.
  std::function<absl::StatusOr<ReplanDecision>(const Plan&, const std::vector<LayerTimes>&,
                                               ReplanState)>
      consider_replan;
  std::vector<std::string> layers;  ///< names of the parameter layers, forward order
};

}  // namespace poseidon
