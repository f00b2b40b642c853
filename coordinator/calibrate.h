#pragma once

// Numbers for the planner when nobody has measured yet, and the decision to plan again when
// somebody has. Pure. Before: a measurement at the start of a job, or the operator's words. After:
// planner.h.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/calibration.h"
#include "common/plan.h"
#include "coordinator/planner.h"

namespace poseidon {

/// What is known of machines that all are alike.
struct AssumedMachines {
  double device_ops_per_s = kDefaultDeviceOpsPerS;
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

}  // namespace poseidon
