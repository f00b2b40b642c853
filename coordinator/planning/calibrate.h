#pragma once

// Assumed speeds for the planner before any measurement, and the decision to plan again after
// measurements. Pure.
//
// Called by: coordinator/job/job_run.h and `poseidon plan`, with measurements or the operator's
// figures. Calls: planner.h.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/calibration.h"
#include "common/plan/plan.h"
#include "coordinator/planning/planner.h"

namespace poseidon {

/// Known speeds of a cluster of equal machines.
struct AssumedMachines {
  /// Of a matrix product. Unset: as fast as it trains, or kDefaultDeviceOpsPerS if that is unset
  /// too.
  std::optional<double> device_ops_per_s;
  /// How fast one worker alone trains; unset: multiply-adds at device_ops_per_s.
  std::optional<double> images_per_s;
  double bandwidth_bytes_per_s = kDefaultBandwidthBytesPerS;  ///< each direction
  double latency_s = kDefaultLatencyS;
  double server_sum_bytes_per_s = kDefaultServerSumBytesPerS;
};

/// Compute time is split over the layers by their multiply-adds, backward twice forward (it is two
/// products of the forward's size); a multiply-add is two operations. Without any multiply-adds: by
/// parameters.
Calibration assume_calibration(const std::vector<PlannerLayer>& layers, std::int64_t batch_size,
                               std::size_t workers, std::size_t servers,
                               const AssumedMachines& machines);

// ---- planning again ----

/// When to make a new plan. Hysteresis: the deviation must be large, persistent and worth it.
struct ReplanOptions {
  double far = 0.2;  ///< of the assumed compute time; half of it counts as near again
  int patience =
      20;  ///< measurements in a row (near ones restart the count, those in between do not count)
  double least_gain = 0.03;  ///< of the predicted iteration; less is not worth an interruption
};

/// State between decisions; begin with {}, also after every new plan.
struct ReplanState {
  int far_for = 0;  ///< measurements
};

struct ReplanDecision {
  ReplanState state;         ///< for the next decision
  double drift = 0.0;        ///< sum of the layers' differences over the assumed compute time
  std::optional<Plan> plan;  ///< the better one; unset: keep the current plan
  /// Once the deviation persists: the predicted iteration of the current plan and of a better one.
  double now_s = 0.0, better_s = 0.0;
  std::string reason;  ///< for people; "" when there is none
};

/// `in_force` was made from `input` (with its calibration); `measured` are the same layers' times
/// now, means over some iterations. INVALID_ARGUMENT when they do not fit. The new plan is for the
/// members of `input`, whose calibration it corrects; the caller sets its epoch.
absl::StatusOr<ReplanDecision> consider_replan(const PlannerInput& input, const Plan& in_force,
                                               const std::vector<LayerTimes>& measured,
                                               ReplanState state,
                                               const ReplanOptions& options = {});

}  // namespace poseidon
