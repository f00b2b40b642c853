#pragma once

// The only definition of an optimizer step, for servers (PS chunks), workers (SFB layers) and
// tests. Pure; any thread.
//
// Called by: server/shard/shard.h when a chunk's sum is complete; worker/executor_factors.h when a
// layer's factors are complete. Where a step needs norms (common/wire/norm_wire.h), it waits for
// them first. Calls: the kernels of common/tensor/kernels.h. A GPU has its own
// (worker/engine/cuda), with the formulas of optimizer_rules.h.
//
// The rules are PyTorch's (torch.optim.SGD, Adam, AdamW), so that trajectories can be compared:
//   g <- g + weight_decay * w                         (sgd, adam)
//   sgd:    m <- momentum * m + g;  w <- w - lr * (nesterov ? g + momentum * m : m)
//   adam:   m <- b1 m + (1-b1) g;  v <- b2 v + (1-b2) g^2;
//           w <- w - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
//   adamw:  w <- w - lr * weight_decay * w, then as adam without decay in g
//           (Loshchilov, Hutter: "Decoupled Weight Decay Regularization", ICLR 2019)
// LARS, which PyTorch does not have, is algorithm 1 of You, Gitman, Ginsburg: "Large Batch Training
// of Convolutional Networks", 2017 (the rate is inside the momentum), for each tensor:
//   ratio = trust_coefficient * |w| / (|g| + weight_decay * |w|);  1 where |w| or |g| is 0
//   m <- momentum * m + lr * ratio * (g + weight_decay * w);  w <- w - m
// A sum is no step: the mean gradient takes the place of the parameters, for programs that step by
// themselves:
//   w <- g
// Clipping by the norm of all gradients together comes first (torch.nn.utils.clip_grad_norm_):
//   g <- g * min(1, clip_norm / (|all g| + 1e-6))

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/tensor/kernels.h"
#include "common/tensor/scan.h"
#include "common/tensor/schedule.h"

namespace poseidon {

enum class OptimizerType { kSgd, kAdam, kAdamW, kLars, kSum };

/// Factors by which the steps of one tensor differ from the job's.
struct StepMultipliers {
  double learning_rate = 1.0;  ///< 0 freezes: no step, no momentum, as if it had no gradient
  double weight_decay = 1.0;
  bool trust_ratio = true;  ///< lars; false: the ratio is 1, for biases and batch normalisation

  bool frozen() const { return learning_rate == 0.0; }
  bool operator==(const StepMultipliers&) const = default;
};

/// Multipliers for all tensors whose "<layer>.<tensor>" matches.
struct TensorRule {
  std::string match;  ///< "*" stands for any letters, "?" for any one
  StepMultipliers multipliers;
};

struct OptimizerSpec {
  OptimizerType type = OptimizerType::kSgd;
  double learning_rate = 0.01;
  double momentum = 0.0;  ///< sgd, lars
  bool nesterov = false;  ///< sgd; needs momentum > 0
  double weight_decay = 0.0;
  double beta1 = 0.9;                ///< adam, adamw
  double beta2 = 0.999;              ///< adam, adamw
  double epsilon = 1e-8;             ///< adam, adamw
  double trust_coefficient = 0.001;  ///< lars
  double clip_norm = 0.0;            ///< of the mean gradient of the whole network; 0: no clipping
  LearningRateSchedule schedule;
  /// A program gives the rates with each step, in place of those here, the schedule's and the
  /// multipliers'.
  bool rates_by_program = false;
  std::vector<TensorRule> layers;  ///< the first that matches counts; none: multipliers of 1
};

/// Learning rate of the step that ends `iteration` (0-based), before multipliers. Pure.
double learning_rate_at(const OptimizerSpec& spec, Iteration iteration);

/// How many float32 state values the optimizer keeps per parameter: 0 to 2.
int optimizer_state_slots(const OptimizerSpec& spec);

/// Which norms a step needs; the step waits until they are known.
enum class NormScope : std::uint8_t {
  kNone,
  kLayer,    ///< LARS: the norms of the layer's own tensors
  kNetwork,  ///< clipping: the norm of all gradients (and those of its tensors)
  kProgram,  ///< the same norms go to a program, which says the rates and the factor of clipping
};
NormScope norm_scope(const OptimizerSpec& spec);

/// The norms that a step needs, as sums of squares of the mean gradient before clipping.
struct StepNorms {
  double all_gradients = 0.0;
  TensorSquares tensor;
};

/// What a program says of one tensor's step.
struct StepRates {
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  bool operator==(const StepRates&) const = default;
};

/// The constants of one step; computed once and used for every chunk.
struct OptimizerStep {
  OptimizerType type = OptimizerType::kSgd;
  bool nesterov = false;
  bool has_momentum = false;
  bool frozen = false;          ///< parameters and state stay as they are
  float gradient_scale = 1.0f;  ///< applied to the gradient first: 1/P1 turns a sum into the mean
  float learning_rate = 0.0f;
  float momentum = 0.0f;
  float weight_decay = 0.0f;
  float beta1 = 0.0f, beta2 = 0.0f, epsilon = 0.0f;
  /// Rounded from double: 1 - float(0.999) is off by 1e-5, which the first steps would show.
  float one_minus_beta1 = 0.0f, one_minus_beta2 = 0.0f;
  float bias_correction1 = 1.0f;       ///< 1 - beta1^t
  float bias_correction2_sqrt = 1.0f;  ///< sqrt(1 - beta2^t)
};
OptimizerStep make_optimizer_step(const OptimizerSpec& spec, Iteration iteration,
                                  float gradient_scale, const StepMultipliers& multipliers = {},
                                  const StepNorms& norms = {});
/// The same at a program's rates. `gradient_scale` has the program's factor in it.
OptimizerStep optimizer_step_at(const StepRates& rates, const OptimizerSpec& spec,
                                Iteration iteration, float gradient_scale);

/// Factors of a step that is not frozen (common/tensor/optimizer_rules.h): SgdFactors for SGD and
/// LARS, AdamFactors for Adam and AdamW.
bool is_adaptive(const OptimizerStep& step);
SgdFactors sgd_factors(const OptimizerStep& step);
AdamFactors adam_factors(const OptimizerStep& step);

/// One fused pass: reads gradient sum, state and `in`, writes state and `out`.
/// `in` and `out` may be the same memory (a step in place) or disjoint (copy on write).
/// All spans have the same length, which is the gradient's too, except state0/state1, which are
/// empty when the optimizer does not use them: SGD and LARS with momentum have state0 = m, Adam and
/// AdamW state0 = m and state1 = v, all 0 at first. Element i depends on element i alone and all
/// kernels give the same bits, so any split into ranges does, on any processor.
void apply_optimizer(const OptimizerStep& step, GradientTerms gradient, std::span<const float> in,
                     std::span<float> out, std::span<float> state0, std::span<float> state1,
                     const Kernels& with = kernels());
/// The same for a gradient that lies in memory as one array.
void apply_optimizer(const OptimizerStep& step, std::span<const float> gradient,
                     std::span<const float> in, std::span<float> out, std::span<float> state0,
                     std::span<float> state1, const Kernels& with = kernels());

/// Rejects settings that cannot train: non-finite or negative rates or multipliers, nesterov
/// without momentum, betas outside [0, 1). The message names the key as in the job file.
absl::Status validate(const OptimizerSpec& spec);

/// Whether `value` is finite and not negative as float32.
bool is_rate(double value);

/// Elements [offset, offset + elements) of a layer's parameters (slot 0, all tensors end to end) or
/// of one of the optimizer's slots (1 and 2, laid out alike).
struct StateRange {
  int slot = 0;
  std::int64_t offset = 0, elements = 0;

  bool operator==(const StateRange&) const = default;
};

}  // namespace poseidon
