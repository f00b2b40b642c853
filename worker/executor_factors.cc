#include "worker/executor_factors.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/process_load.h"
#include "common/plan/tensor_parts.h"
#include "common/wire/factor_wire.h"

namespace poseidon {
namespace {

/// The factors of all workers are there twice for each layer (sync/routes/factor_stacks.h).
absl::Status check_stacks(const Plan& plan) {
  double needed = 0.0;
  for (std::uint32_t l = 0; l < plan.layers.size(); ++l) {
    const std::optional<FactorShape> shape = factor_shape(plan, LayerIndex(l));
    if (!shape) continue;
    const auto elements = static_cast<double>(shape->gradient_elements() + shape->input_elements());
    needed += 2.0 * plan.workers() * elements * sizeof(float);
  }
  const auto installed = static_cast<double>(installed_memory_bytes());
  if (needed <= installed) return absl::OkStatus();
  constexpr double kMebibyte = 1024.0 * 1024.0;
  return absl::ResourceExhaustedError(absl::StrCat(
      "the factors that ", plan.workers(), plan.workers() == 1 ? " worker" : " workers",
      " exchange need ", static_cast<std::int64_t>(needed / kMebibyte),
      " MiB on each, this machine has ", static_cast<std::int64_t>(installed / kMebibyte),
      " MiB; use a smaller batch_size, or set sync.scheme to \"ps\""));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExecutorFactors>> ExecutorFactors::create(
    std::shared_ptr<Executor> executor, const Plan& plan, OptimizerSpec optimizer,
    std::int64_t micro_batches) {
  POSEIDON_RETURN_IF_ERROR(check_stacks(plan));
  std::unique_ptr<ExecutorFactors> factors(new ExecutorFactors(
      std::move(executor), 1.0f / static_cast<float>(plan.workers() * micro_batches),
      std::move(optimizer)));
  bool any = false;
  for (std::uint32_t l = 0; l < plan.layers.size(); ++l) {
    State& state = factors->states_.emplace_back();
    if (plan.layers[l].scheme != Scheme::kSfb) continue;
    any = true;
    POSEIDON_RETURN_IF_ERROR(
        factors->executor_->keep_factors(LayerIndex(l), factors->optimizer_slots()));
    const PlanLayer& layer = plan.layers[l];
    for (const PlanTensor& tensor : layer.tensors) state.tensors.push_back(tensor.multipliers);
    state.tensors.resize(tensor_count(layer));
  }
  if (!any) factors.reset();
  return factors;
}

FloatBuffer ExecutorFactors::allocate(std::int64_t elements) {
  absl::StatusOr<FloatBuffer> memory = executor_->allocate_factors(elements);
  POSEIDON_CHECK(memory.ok(), "out of memory");  // as FloatBuffer::sendable
  return *std::move(memory);
}

absl::Status ExecutorFactors::copy_factors(LayerIndex layer, const OwnFactors& to) {
  return executor_->copy_factors(layer, to.output_gradient, to.input);
}

absl::StatusOr<std::vector<TensorSquares>> ExecutorFactors::measure(LayerIndex layer,
                                                                    Iteration iteration,
                                                                    const StackedFactors& factors) {
  State& state = states_[layer.value()];
  if (state.measured == iteration) return state.squares;
  POSEIDON_ASSIGN_OR_RETURN(
      const FactorSquares sums,
      executor_->measure_factors(layer, factors.output_gradients, factors.inputs));
  FactorSquares of_parameters;
  if (optimizer_.type == OptimizerType::kLars) {
    POSEIDON_ASSIGN_OR_RETURN(of_parameters, executor_->measure_parameters(layer));
  }
  const double scale = gradient_scale_;
  state.squares.assign(state.tensors.size(), {});
  const auto add = [&](std::size_t tensor, double gradient, double parameters) {
    tensor = std::min(tensor, state.tensors.size() - 1);
    if (state.tensors[tensor].frozen()) return;
    state.squares[tensor] +=
        TensorSquares{.gradient = gradient * scale * scale, .parameters = parameters};
  };
  add(0, sums.weight, of_parameters.weight);
  add(1, sums.bias, of_parameters.bias);
  state.measured = iteration;
  return state.squares;
}

absl::Status ExecutorFactors::step(LayerIndex layer, Iteration iteration,
                                   const StackedFactors& factors, double all_gradients) {
  State& state = states_[layer.value()];
  const bool asks_norms = optimizer_.type == OptimizerType::kLars;
  if (asks_norms) POSEIDON_RETURN_IF_ERROR(measure(layer, iteration, factors).status());
  const auto step_of = [&](std::size_t tensor) {
    tensor = std::min(tensor, state.tensors.size() - 1);
    StepNorms norms{.all_gradients = all_gradients, .tensor = {}};
    if (asks_norms) norms.tensor = state.squares[tensor];
    return make_optimizer_step(optimizer_, iteration, gradient_scale_, state.tensors[tensor],
                               norms);
  };
  return executor_->step_from_factors(layer, {.output_gradients = factors.output_gradients,
                                              .inputs = factors.inputs,
                                              .weight_step = step_of(0),
                                              .bias_step = step_of(1)});
}

}  // namespace poseidon
