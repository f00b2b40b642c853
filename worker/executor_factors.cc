#include "worker/executor_factors.h"

#include <utility>

#include "common/status_macros.h"

namespace poseidon {

absl::StatusOr<std::unique_ptr<ExecutorFactors>> ExecutorFactors::create(
    std::shared_ptr<Executor> executor, const Plan& plan, OptimizerSpec optimizer) {
  const int slots = optimizer_state_slots(optimizer);
  std::unique_ptr<ExecutorFactors> factors(
      new ExecutorFactors(std::move(executor), plan.workers(), std::move(optimizer)));
  bool any = false;
  for (std::uint32_t l = 0; l < plan.layers.size(); ++l) {
    State& state = factors->states_.emplace_back();
    if (plan.layers[l].scheme != Scheme::kSfb) continue;
    any = true;
    POSEIDON_RETURN_IF_ERROR(factors->executor_->keep_factors(LayerIndex(l)));
    if (slots > 0) state.slot0 = FloatBuffer(plan.layers[l].parameters);
    if (slots > 1) state.slot1 = FloatBuffer(plan.layers[l].parameters);
  }
  if (!any) factors.reset();
  return factors;
}

absl::Status ExecutorFactors::copy_factors(LayerIndex layer, const OwnFactors& to) {
  return executor_->copy_factors(layer, to.output_gradient, to.input);
}

std::span<float> ExecutorFactors::state(LayerIndex layer, int slot) {
  State& state = states_[layer.value()];
  return (slot == 0 ? state.slot0 : state.slot1).floats();
}

absl::Status ExecutorFactors::step(LayerIndex layer, Iteration iteration,
                                   const StackedFactors& factors) {
  State& state = states_[layer.value()];
  // Every worker has K samples in every iteration (docs/sampling.md), and dY is of the mean over
  // them: the mean over all is the sum over the stack, divided by the number of workers.
  const float scale = 1.0f / static_cast<float>(workers_);
  return executor_->step_from_factors(
      layer, {.output_gradients = factors.output_gradients,
              .inputs = factors.inputs,
              .optimizer = make_optimizer_step(optimizer_, iteration, scale),
              .state0 = state.slot0.floats(),
              .state1 = state.slot1.floats()});
}

}  // namespace poseidon
