#pragma once

// `poseidon plan`: shows the plan that the coordinator would make and its predicted speed, without
// a cluster. Pure: a prepared job and assumptions in, text out.
//
// Called by: cli/commands/commands.cc. Calls: coordinator/planning/planner.h,
// coordinator/planning/calibrate.h.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/job.h"
#include "common/plan/plan.h"
#include "coordinator/planning/calibrate.h"
#include "coordinator/planning/planner.h"
#include "nlohmann/json.hpp"

namespace poseidon {

struct PlanQuestion {
  std::string name;                  ///< of the job
  std::vector<PlannerLayer> layers;  ///< forward order
  std::int64_t batch_size = 0;
  SyncSpec sync;
  std::size_t workers = 0;
  std::size_t servers = 0;
  std::size_t workers_per_machine = 1;
  bool separate_servers = false;  ///< on machines of their own, instead of beside the workers
  NormScope norm_scope = NormScope::kNone;  ///< of the job's optimizer
  AssumedMachines machines;
  /// The user stated the speed of the machines. Otherwise cost=time has no basis and the choice is
  /// by bytes, as in an uncalibrated cluster.
  bool machines_known = false;
};

/// The same job on another number of nodes.
struct ScalingRow {
  std::size_t workers = 0;
  std::size_t servers = 0;  ///< in the proportion asked for, at least one
  double iteration_s = 0.0;
  double images_per_s = 0.0;
  double speedup = 0.0;     ///< over one worker without synchronisation
  double efficiency = 0.0;  ///< speedup / workers
  std::size_t sfb_layers = 0;
};

struct PlanAnswer {
  Plan plan;  ///< with prediction and calibration; addresses are invented
  bool by_time = false;
  std::vector<ScalingRow> scaling;  ///< 1, 2, 4, ... 64 workers
};

/// INVALID_ARGUMENT when the job cannot be planned.
absl::StatusOr<PlanAnswer> answer_plan(const PlanQuestion& question);

/// The content of plan.json without epoch and addresses, so it can be used as sync.plan; plus the
/// question and the predictions for other numbers of workers.
nlohmann::ordered_json plan_answer_to_json(const PlanQuestion& question, const PlanAnswer& answer);

/// Tables for people.
std::string plan_answer_to_text(const PlanQuestion& question, const PlanAnswer& answer);

}  // namespace poseidon
