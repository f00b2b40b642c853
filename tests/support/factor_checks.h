#pragma once

// For tests: checks of fully connected layers' steps from stacked factors, the same for every
// device. factor_step_test.cc runs them on the CPU, tests/gpu on a GPU.

#include <cstdint>
#include <string>
#include <vector>

#include "common/tensor/optimizer.h"
#include "worker/engine/device.h"

namespace poseidon::testing {

struct FactorProblem {
  std::int64_t rows, outputs, inputs;
  bool has_bias;
  OptimizerSpec optimizer;

  std::string name() const;  ///< for messages: "10 x 500 from 64 rows"
};
struct FactorResult {
  std::vector<float> parameters, state0, state1;
  bool operator==(const FactorResult&) const = default;
};

/// Awkward sizes, and every kind of optimizer.
std::vector<FactorProblem> factor_problems();

/// Two steps, so that optimizer state counts.
FactorResult step_twice(Device& device, const FactorProblem& problem);

/// How far the results of two devices that sum in float may be apart.
double factor_tolerance(const FactorProblem& problem);

/// The gradient's sums of squares, of the first of those steps.
FactorSquares measure_first(Device& device, const FactorProblem& problem);
/// Device::square_sum of those.
double measure_values(Device& device, const std::vector<float>& values);
/// Relative.
double square_tolerance(const FactorProblem& problem);

}  // namespace poseidon::testing
