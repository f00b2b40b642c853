#pragma once

// Measured or assumed speeds of the machines, on which the planner's predictions rest. Part of
// plan.json, so that a plan can be checked and repeated. Pure.
//
// Called by: coordinator/planning/calibrate.h fills it; coordinator/planning/planner.h uses it.
// Calls: nothing.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace poseidon {

/// Defaults for numbers that were not measured. A worker of the first papers: a GPU that multiplies
/// matrices at 6 TFLOP/s, 10 GbE, and one core that sums contributions and steps the optimizer.
inline constexpr double kDefaultDeviceOpsPerS = 6e12;
inline constexpr double kDefaultBandwidthBytesPerS = 1.25e9;
inline constexpr double kDefaultLatencyS = 50e-6;
inline constexpr double kDefaultServerSumBytesPerS = 4e9;

/// Times of one parameter layer on one worker for a whole batch. Layers without parameters count
/// with the parameter layer before them.
struct LayerTimes {
  std::string name;
  double forward_s = 0.0;
  double backward_s = 0.0;
};

/// Speed of the NIC of a node's machine when only this node uses it; both directions at once.
struct NicSpeed {
  double send_bytes_per_s = kDefaultBandwidthBytesPerS;
  double receive_bytes_per_s = kDefaultBandwidthBytesPerS;
};

struct Calibration {
  bool measured = false;                            ///< false: assumed, or given by hand
  std::vector<LayerTimes> layers;                   ///< parameter layers, forward order
  double device_ops_per_s = kDefaultDeviceOpsPerS;  ///< of a large matrix product on a worker
  double server_sum_bytes_per_s =
      kDefaultServerSumBytesPerS;       ///< contributions one server takes in
  double latency_s = kDefaultLatencyS;  ///< one way, between machines
  std::vector<NicSpeed> workers;        ///< by rank
  std::vector<NicSpeed> servers;        ///< by ServerIndex
};

/// INVALID_ARGUMENT when a speed is not above 0, a time is negative or a number is not finite; the
/// message starts with `source` and names the key.
absl::Status validate(const Calibration& calibration, std::string_view source);

/// The value of "calibration" in plan.json.
nlohmann::ordered_json calibration_to_json(const Calibration& calibration);

}  // namespace poseidon
