// Computes the constants of a step. The arithmetic is in common/tensor/kernels_body.h.

#include "common/tensor/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "common/base/check.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

constexpr double kClipEpsilon = 1e-6;  ///< PyTorch's

absl::Status refuse(std::string_view key, std::string_view expected, double got) {
  return absl::InvalidArgumentError(
      str_cat("optimizer.", key, ": expected ", expected, ", got ", number_text(got)));
}

/// Below 1 also as a float32: 1 - 1e-12 would become 1, which never forgets.
bool is_fraction(double value) { return value >= 0.0 && static_cast<float>(value) < 1.0f; }

bool is_adam(OptimizerType type) {
  return type == OptimizerType::kAdam || type == OptimizerType::kAdamW;
}

/// What all gradients are multiplied by.
double clip_factor(const OptimizerSpec& spec, const StepNorms& norms) {
  if (spec.clip_norm == 0.0) return 1.0;
  return std::min(1.0, spec.clip_norm / (std::sqrt(norms.all_gradients) + kClipEpsilon));
}

/// LARS: the tensor's own share of the rate.
double trust_ratio(const OptimizerSpec& spec, const StepMultipliers& multipliers, double clip,
                   const TensorSquares& squares) {
  if (!multipliers.trust_ratio) return 1.0;
  const double weights = std::sqrt(squares.parameters);
  const double gradient = clip * std::sqrt(squares.gradient);
  if (weights == 0.0 || gradient == 0.0) return 1.0;
  const double decay = spec.weight_decay * multipliers.weight_decay;
  return spec.trust_coefficient * weights / (gradient + decay * weights);
}

absl::Status validate_rule(const TensorRule& rule, std::size_t index) {
  const auto check = [&](std::string_view key, double value) {
    return is_rate(value) ? absl::OkStatus()
                          : refuse(str_cat("layers[", index, "].", key),
                                   "a finite number (as float32), at least 0", value);
  };
  absl::Status status = check("learning_rate_multiplier", rule.multipliers.learning_rate);
  status.Update(check("weight_decay_multiplier", rule.multipliers.weight_decay));
  return status;
}

/// By the kernel of a step of rate -1 from zero, which is exact.
void copy_mean(const OptimizerStep& step, GradientTerms gradient, std::span<float> out,
               const Kernels& with) {
  constexpr std::size_t kBlock = 4096;
  static constexpr std::array<float, kBlock> kZeros{};
  const SgdFactors factors{.gradient_scale = step.gradient_scale,
                           .weight_decay = 0.0f,
                           .learning_rate = -1.0f,
                           .momentum = 0.0f};
  for (std::size_t first = 0; first < out.size(); first += kBlock) {
    const std::size_t size = std::min(kBlock, out.size() - first);
    with.sgd(factors, gradient.from(first), kZeros.data(), out.data() + first, size);
  }
}

}  // namespace

bool is_rate(double value) { return value >= 0.0 && std::isfinite(static_cast<float>(value)); }

double learning_rate_at(const OptimizerSpec& spec, Iteration iteration) {
  return learning_rate_at(spec.schedule, spec.learning_rate, iteration);
}

int optimizer_state_slots(const OptimizerSpec& spec) {
  if (is_adam(spec.type)) return 2;
  return spec.momentum > 0.0 ? 1 : 0;
}

NormScope norm_scope(const OptimizerSpec& spec) {
  if (spec.rates_by_program) return NormScope::kProgram;
  if (spec.clip_norm > 0.0) return NormScope::kNetwork;
  return spec.type == OptimizerType::kLars ? NormScope::kLayer : NormScope::kNone;
}

namespace {

/// `trust`: of LARS.
OptimizerStep step_at(const OptimizerSpec& spec, Iteration iteration, double gradient_scale,
                      const StepRates& rates, double trust) {
  OptimizerStep step;
  step.type = spec.type;
  step.nesterov = spec.nesterov;
  step.has_momentum = optimizer_state_slots(spec) == 1;
  double decay = rates.weight_decay;
  step.gradient_scale = static_cast<float>(gradient_scale);
  step.learning_rate = static_cast<float>(rates.learning_rate);
  if (spec.type == OptimizerType::kLars) {
    // The kernels put the rate after the momentum; LARS has it before.
    const double inside = rates.learning_rate * trust;
    step.gradient_scale = static_cast<float>(gradient_scale * inside);
    decay *= inside;
    step.learning_rate = 1.0f;
  }
  step.momentum = static_cast<float>(spec.momentum);
  step.weight_decay = static_cast<float>(decay);
  step.beta1 = static_cast<float>(spec.beta1);
  step.beta2 = static_cast<float>(spec.beta2);
  step.one_minus_beta1 = static_cast<float>(1.0 - spec.beta1);
  step.one_minus_beta2 = static_cast<float>(1.0 - spec.beta2);
  step.epsilon = static_cast<float>(spec.epsilon);
  step.bias_correction1 = static_cast<float>(1.0 - integer_power(spec.beta1, iteration + 1));
  step.bias_correction2_sqrt =
      static_cast<float>(std::sqrt(1.0 - integer_power(spec.beta2, iteration + 1)));
  return step;
}

}  // namespace

OptimizerStep make_optimizer_step(const OptimizerSpec& spec, Iteration iteration,
                                  float gradient_scale, const StepMultipliers& multipliers,
                                  const StepNorms& norms) {
  const double clip = clip_factor(spec, norms);
  const StepRates rates{
      .learning_rate = learning_rate_at(spec, iteration) * multipliers.learning_rate,
      .weight_decay = spec.weight_decay * multipliers.weight_decay};
  OptimizerStep step = step_at(
      spec, iteration, gradient_scale * clip, rates,
      spec.type == OptimizerType::kLars ? trust_ratio(spec, multipliers, clip, norms.tensor) : 1.0);
  step.frozen = multipliers.frozen();
  return step;
}

OptimizerStep optimizer_step_at(const StepRates& rates, const OptimizerSpec& spec,
                                Iteration iteration, float gradient_scale) {
  return step_at(spec, iteration, gradient_scale, rates, 1.0);
}

bool is_adaptive(const OptimizerStep& step) { return is_adam(step.type); }

SgdFactors sgd_factors(const OptimizerStep& step) {
  return {.gradient_scale = step.gradient_scale,
          .weight_decay = step.weight_decay,
          .learning_rate = step.learning_rate,
          .momentum = step.momentum};
}

AdamFactors adam_factors(const OptimizerStep& step) {
  const bool decoupled = step.type == OptimizerType::kAdamW;
  return {.gradient_scale = step.gradient_scale,
          .decay = decoupled ? step.learning_rate * step.weight_decay : step.weight_decay,
          .rate = step.learning_rate / step.bias_correction1,
          .beta1 = step.beta1,
          .beta2 = step.beta2,
          .new_share1 = step.one_minus_beta1,
          .new_share2 = step.one_minus_beta2,
          .correction2_sqrt = step.bias_correction2_sqrt,
          .epsilon = step.epsilon};
}

void apply_optimizer(const OptimizerStep& step, GradientTerms gradient, std::span<const float> in,
                     std::span<float> out, std::span<float> state0, std::span<float> state1,
                     const Kernels& with) {
  const std::size_t size = in.size();
  const bool adaptive = is_adaptive(step);
  POSEIDON_CHECK(out.size() == size, "spans of different lengths");
  POSEIDON_CHECK(state0.size() == (adaptive || step.has_momentum ? size : 0),
                 "state0 of wrong length");
  POSEIDON_CHECK(state1.size() == (adaptive ? size : 0), "state1 of wrong length");
  if (step.frozen) {
    if (in.data() != out.data()) std::copy(in.begin(), in.end(), out.begin());
    return;
  }
  if (step.type == OptimizerType::kSum) {
    return copy_mean(step, gradient, out, with);
  }
  if (!adaptive) {
    const SgdFactors factors = sgd_factors(step);
    if (!step.has_momentum) return with.sgd(factors, gradient, in.data(), out.data(), size);
    const auto run = step.nesterov ? with.nesterov : with.momentum;
    return run(factors, gradient, in.data(), out.data(), state0.data(), size);
  }
  const AdamFactors factors = adam_factors(step);
  const auto run = step.type == OptimizerType::kAdamW ? with.adamw : with.adam;
  run(factors, gradient, in.data(), out.data(), state0.data(), state1.data(), size);
}

void apply_optimizer(const OptimizerStep& step, std::span<const float> gradient,
                     std::span<const float> in, std::span<float> out, std::span<float> state0,
                     std::span<float> state1, const Kernels& with) {
  POSEIDON_CHECK(gradient.size() == in.size(), "spans of different lengths");
  const GradientTerms terms{.last = reinterpret_cast<const std::byte*>(gradient.data())};
  apply_optimizer(step, terms, in, out, state0, state1, with);
}

absl::Status validate(const OptimizerSpec& spec) {
  if (!is_rate(spec.learning_rate)) {
    return refuse("learning_rate", "a finite number (as float32), at least 0", spec.learning_rate);
  }
  if (!is_rate(spec.weight_decay)) {
    return refuse("weight_decay", "a finite number (as float32), at least 0", spec.weight_decay);
  }
  if (!is_adam(spec.type)) {
    if (!is_fraction(spec.momentum)) {
      return refuse("momentum", "a number from 0 to less than 1 (as float32)", spec.momentum);
    }
    if (spec.nesterov && spec.momentum == 0.0) {
      return absl::InvalidArgumentError(
          "optimizer.nesterov: needs optimizer.momentum above 0; set it, or nesterov to false");
    }
  } else {
    if (!is_fraction(spec.beta1))
      return refuse("beta1", "a number from 0 to less than 1 (as float32)", spec.beta1);
    if (!is_fraction(spec.beta2))
      return refuse("beta2", "a number from 0 to less than 1 (as float32)", spec.beta2);
    if (!is_rate(spec.epsilon) || static_cast<float>(spec.epsilon) == 0.0f) {
      return refuse("epsilon", "a number above 0 that float32 can hold", spec.epsilon);
    }
  }
  if (!is_rate(spec.clip_norm)) {
    return refuse("clip_norm", "a finite number (as float32) above 0, or 0 for no clipping",
                  spec.clip_norm);
  }
  if (spec.type == OptimizerType::kLars &&
      !(is_rate(spec.trust_coefficient) && spec.trust_coefficient > 0.0)) {
    return refuse("trust_coefficient", "a finite number (as float32) above 0",
                  spec.trust_coefficient);
  }
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    if (absl::Status status = validate_rule(spec.layers[i], i); !status.ok()) return status;
  }
  return validate(spec.schedule);
}

}  // namespace poseidon
