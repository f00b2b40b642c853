#pragma once

// For the GPU tests: training of one network on one device, step by step, without servers.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/tensor/optimizer.h"
#include "worker/engine/device.h"
#include "worker/engine/executor.h"

namespace poseidon::testing {

/// One network on one device with an optimizer on the host, all parameters initialised from a seed.
class Training {
 public:
  /// Null, and the test has failed, where the device cannot hold the network or is null itself.
  static std::unique_ptr<Training> create(const NetSpec& net, std::int64_t batch_size,
                                          std::unique_ptr<Device> device,
                                          const OptimizerSpec& optimizer);

  /// Forward, backward and one step; the mean loss. NaN, and the test has failed, where the device
  /// cannot. `next`, if any, is staged between.
  double iterate(const Batch& batch, const Batch* next = nullptr);
  Executor& executor() { return *executor_; }
  /// All parameters, end to end.
  std::vector<float> parameters();
  /// All gradients of the last iteration, by layer.
  std::vector<std::vector<float>> gradients();

 private:
  Training(std::unique_ptr<Executor> executor, const OptimizerSpec& optimizer);

  const OptimizerSpec optimizer_;
  const std::unique_ptr<Executor> executor_;
  std::vector<std::vector<float>> momentum_;
  Iteration iteration_ = 0;
};

/// Uniform images, random labels.
Batch random_batch(const NetSpec& net, std::int64_t samples, std::uint64_t seed);

/// ||got - wanted|| / ||wanted||, infinite where a value is no finite number.
double relative_distance(const std::vector<float>& got, const std::vector<float>& wanted);

}  // namespace poseidon::testing
