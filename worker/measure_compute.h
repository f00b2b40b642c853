#pragma once

// Measures how fast this worker computes a job's network, for planning.
//
// Called by: worker/native_framework.h, for a Calibrate task; the coordinator puts the result into
// the plan's calibration. Calls: an executor of its own, which is destroyed before training begins.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/plan/calibration.h"
#include "common/tensor/optimizer.h"
#include "worker/engine/executor.h"

namespace poseidon {

struct ComputeTask {
  std::int64_t batch_size = 0;     ///< of an iteration; the executor takes it in equal parts
  std::int64_t micro_batches = 1;  ///< how many
  std::uint32_t workers = 1;       ///< that the job will have
  Iteration iterations = 0;        ///< of the job; a short one is not worth many passes
  OptimizerSpec optimizer;
  Nanoseconds max_time = Milliseconds(1000);  ///< no pass begins after it; one is always made
  const Clock* clock = nullptr;
  const std::atomic<bool>* cancelled = nullptr;  ///< looked at between parts
};

struct ComputeSpeed {
  std::vector<LayerTimes> layers;  ///< of a whole batch; medians over the passes
  /// Of step_from_factors on the largest fully connected layer: 2 rows M N operations, optimizer
  /// included. 0 without such a layer.
  double device_ops_per_s = 0.0;
};

/// On the calling thread. CANCELLED, or what the engine says.
absl::StatusOr<ComputeSpeed> measure_compute(const std::shared_ptr<Executor>& executor,
                                             const ComputeTask& task);

}  // namespace poseidon
