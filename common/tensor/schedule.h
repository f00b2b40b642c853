#pragma once

// The learning rate as a function of the iteration alone. Pure.
//
// Called by: common/job/job_optimizer.h, which reads the schedule from the job file, and
// common/tensor/optimizer.h, which makes steps. Calls: nothing.
//
// Servers step PS layers and workers step SFB layers, on machines that may differ. So nothing here
// calls std::pow, std::cos or the like, whose last bit depends on the processor. Products, sums and
// divisions do not depend on it.

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace poseidon {

/// With base rate r, iteration i (0-based) and, where it matters, N = end_iteration:
///   constant     r
///   step         r * gamma^(i / step_iterations), rounded down
///   multistep    r * gamma^(milestones that i has reached)
///   exponential  r * gamma^i                                (PyTorch ExponentialLR, Caffe "exp")
///   inverse      r * (1 + gamma * i)^-power                 (Caffe "inv")
///   polynomial   r * (1 - i / N)^power, 0 from N on         (Caffe "poly", PyTorch PolynomialLR)
///   cosine       minimum + (r - minimum) * (1 + cos(pi * i / N)) / 2, minimum from N on
///                (Loshchilov, Hutter: "SGDR", ICLR 2017, eq. 5; PyTorch CosineAnnealingLR)
/// Over the first warmup_iterations the result is multiplied by (i + 1) / warmup_iterations.
struct LearningRateSchedule {
  enum class Type { kConstant, kStep, kMultiStep, kExponential, kInverse, kPolynomial, kCosine };
  Type type = Type::kConstant;
  std::int64_t step_iterations = 0;                 ///< kStep
  std::vector<std::int64_t> milestones_iterations;  ///< kMultiStep, ascending
  double gamma = 0.1;                               ///< kStep, kMultiStep, kExponential, kInverse
  double power = 1.0;                               ///< kInverse, kPolynomial
  double minimum = 0.0;                             ///< kCosine: the final rate
  std::int64_t end_iteration = 0;                   ///< kPolynomial, kCosine: N
  std::int64_t warmup_iterations = 0;
};

/// "constant", "step", ...: optimizer.schedule.type in the job file.
std::string_view schedule_name(LearningRateSchedule::Type type);
/// All types, in the order above.
const std::vector<LearningRateSchedule::Type>& all_schedules();

/// The rate of the step that ends `iteration`. `schedule` must have passed validate().
double learning_rate_at(const LearningRateSchedule& schedule, double base_rate,
                        Iteration iteration);

/// Rejects an invalid schedule; the message names the key as in the job file.
absl::Status validate(const LearningRateSchedule& schedule);

/// base^exponent by squaring; the same bits on every machine.
double integer_power(double base, std::int64_t exponent);
/// base^exponent for base >= 0, and cos(pi * turns) for turns from 0 to 1: within a few units of
/// the last place of the exact value, the same bits on every machine.
double portable_power(double base, double exponent);
double portable_cos_pi(double turns);

}  // namespace poseidon
