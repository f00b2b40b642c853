#include "common/tensor/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "common/base/text.h"
#include "common/tensor/optimizer.h"

namespace poseidon {
namespace {

using Type = LearningRateSchedule::Type;

constexpr double kLn2 = 0.693147180559945309417;
constexpr double kPi = 3.14159265358979323846;

/// x in [sqrt(1/2), sqrt(2)]: 2 atanh((x - 1) / (x + 1)), whose series has lost 2^-60 after 24
/// terms.
double log_near_one(double x) {
  const double z = (x - 1.0) / (x + 1.0);
  const double square = z * z;
  double sum = 0.0;
  for (int k = 23; k >= 0; --k) sum = sum * square + 1.0 / (2.0 * k + 1.0);
  return 2.0 * z * sum;
}

/// x in [-ln2/2, ln2/2], by its series.
double exp_near_zero(double x) {
  double sum = 1.0;
  for (int k = 18; k >= 1; --k) sum = 1.0 + sum * x / k;
  return sum;
}

absl::Status refuse(std::string_view key, std::string_view expected, double got) {
  return absl::InvalidArgumentError(
      str_cat("optimizer.schedule.", key, ": expected ", expected, ", got ", number_text(got)));
}

bool has_gamma(Type type) {
  return type == Type::kStep || type == Type::kMultiStep || type == Type::kExponential ||
         type == Type::kInverse;
}

absl::Status validate_milestones(const LearningRateSchedule& schedule) {
  std::int64_t last = 0;
  const std::vector<std::int64_t>& milestones = schedule.milestones_iterations;
  for (std::size_t i = 0; i < milestones.size(); ++i) {
    if (milestones[i] <= last) {
      return refuse(str_cat("milestones_iterations[", i, "]"),
                    i == 0 ? "a positive number" : "a number above the one before",
                    static_cast<double>(milestones[i]));
    }
    last = milestones[i];
  }
  return absl::OkStatus();
}

/// How much of the way to end_iteration is done, 0 to 1.
double progress(const LearningRateSchedule& schedule, Iteration iteration) {
  POSEIDON_CHECK(schedule.end_iteration > 0, "validate the schedule first");
  return static_cast<double>(std::min<Iteration>(iteration, schedule.end_iteration)) /
         static_cast<double>(schedule.end_iteration);
}

double scheduled_rate(const LearningRateSchedule& schedule, double rate, Iteration iteration) {
  switch (schedule.type) {
    case Type::kConstant:
      break;
    case Type::kStep:
      POSEIDON_CHECK(schedule.step_iterations > 0, "validate the schedule first");
      return rate * integer_power(schedule.gamma, iteration / schedule.step_iterations);
    case Type::kMultiStep:
      return rate *
             integer_power(schedule.gamma, std::count_if(schedule.milestones_iterations.begin(),
                                                         schedule.milestones_iterations.end(),
                                                         [iteration](std::int64_t milestone) {
                                                           return milestone <= iteration;
                                                         }));
    case Type::kExponential:
      return rate * integer_power(schedule.gamma, iteration);
    case Type::kInverse:
      return rate *
             portable_power(1.0 + schedule.gamma * static_cast<double>(iteration), -schedule.power);
    case Type::kPolynomial:
      return rate * portable_power(1.0 - progress(schedule, iteration), schedule.power);
    case Type::kCosine: {
      const double done = progress(schedule, iteration);
      if (done >= 1.0) return schedule.minimum;
      return schedule.minimum + (rate - schedule.minimum) * (1.0 + portable_cos_pi(done)) / 2.0;
    }
  }
  return rate;
}

}  // namespace

double integer_power(double base, std::int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) result *= base;
    base *= base;
  }
  return result;
}

double portable_power(double base, double exponent) {
  POSEIDON_CHECK(base >= 0.0, "a base that has real powers");
  if (exponent == 0.0 || base == 1.0) return 1.0;
  if (base == 0.0) return exponent > 0.0 ? 0.0 : std::numeric_limits<double>::infinity();
  int halvings = 0;
  double mantissa = std::frexp(base, &halvings);  // exact, in [1/2, 1)
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2.0;
    --halvings;
  }
  const double log = exponent * (log_near_one(mantissa) + halvings * kLn2);
  const double doublings = std::floor(log / kLn2 + 0.5);
  if (doublings > 2000.0) return std::numeric_limits<double>::infinity();
  if (doublings < -2000.0) return 0.0;
  return std::ldexp(exp_near_zero(log - doublings * kLn2), static_cast<int>(doublings));
}

double portable_cos_pi(double turns) {
  // cos(pi t) = sin(pi (1/2 - t)), whose series from -pi/2 to pi/2 has lost 2^-60 after 13 terms.
  const double x = kPi * (0.5 - turns);
  const double square = x * x;
  double sum = 1.0;
  for (int k = 12; k >= 1; --k) sum = 1.0 - sum * square / (2.0 * k * (2.0 * k + 1.0));
  return x * sum;
}

std::string_view schedule_name(Type type) {
  switch (type) {
    case Type::kConstant:
      return "constant";
    case Type::kStep:
      return "step";
    case Type::kMultiStep:
      return "multistep";
    case Type::kExponential:
      return "exponential";
    case Type::kInverse:
      return "inverse";
    case Type::kPolynomial:
      return "polynomial";
    case Type::kCosine:
      return "cosine";
  }
  return "unknown";
}

const std::vector<Type>& all_schedules() {
  static const std::vector<Type> all = {Type::kConstant,    Type::kStep,    Type::kMultiStep,
                                        Type::kExponential, Type::kInverse, Type::kPolynomial,
                                        Type::kCosine};
  return all;
}

double learning_rate_at(const LearningRateSchedule& schedule, double base_rate,
                        Iteration iteration) {
  double rate = scheduled_rate(schedule, base_rate, iteration);
  if (iteration < schedule.warmup_iterations) {
    rate *= static_cast<double>(iteration + 1) / static_cast<double>(schedule.warmup_iterations);
  }
  return rate;
}

absl::Status validate(const LearningRateSchedule& schedule) {
  if (schedule.warmup_iterations < 0) {
    return refuse("warmup_iterations", "at least 0",
                  static_cast<double>(schedule.warmup_iterations));
  }
  if (has_gamma(schedule.type) && !is_rate(schedule.gamma)) {
    return refuse("gamma", "a finite number (as float32), at least 0", schedule.gamma);
  }
  switch (schedule.type) {
    case Type::kConstant:
      break;
    case Type::kExponential:
      // It would leave float32's range sooner or later, and the run with it.
      if (schedule.gamma > 1.0) return refuse("gamma", "a number from 0 to 1", schedule.gamma);
      break;
    case Type::kStep:
      if (schedule.step_iterations < 1) {
        return refuse("step_iterations", "at least 1",
                      static_cast<double>(schedule.step_iterations));
      }
      break;
    case Type::kMultiStep:
      return validate_milestones(schedule);
    case Type::kInverse:
      if (!is_rate(schedule.power)) {
        return refuse("power", "a finite number (as float32), at least 0", schedule.power);
      }
      break;
    case Type::kPolynomial:
    case Type::kCosine:
      if (schedule.end_iteration < 1) {
        return refuse("end_iteration", "at least 1", static_cast<double>(schedule.end_iteration));
      }
      if (schedule.type == Type::kPolynomial && !(is_rate(schedule.power) && schedule.power > 0)) {
        return refuse("power", "a finite number (as float32) above 0", schedule.power);
      }
      if (schedule.type == Type::kCosine && !is_rate(schedule.minimum)) {
        return refuse("minimum", "a finite number (as float32), at least 0", schedule.minimum);
      }
      break;
  }
  return absl::OkStatus();
}

}  // namespace poseidon
