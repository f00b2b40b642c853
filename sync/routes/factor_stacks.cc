#include "sync/routes/factor_stacks.h"

#include <optional>

#include "common/base/check.h"

namespace poseidon {

FactorStacks::FactorStacks(const Plan& plan, WorkerRank rank, const Allocate& allocate)
    : rank_(rank), workers_(plan.workers()), layers_(plan.layers.size()) {
  for (std::uint32_t l = 0; l < plan.layers.size(); ++l) {
    const std::optional<FactorShape> shape = factor_shape(plan, LayerIndex(l));
    if (!shape) continue;
    for (Stack& stack : layers_[l]) {
      stack.output_gradients = allocate(plan.workers() * shape->gradient_elements());
      stack.inputs = allocate(plan.workers() * shape->input_elements());
    }
  }
}

std::span<float> FactorStacks::part(LayerIndex layer, Iteration iteration, FactorKind kind,
                                    WorkerRank rank) {
  POSEIDON_CHECK(kind == FactorKind::kOutputGradient || kind == FactorKind::kInput,
                 "a kind that is stacked");
  Stack& whole = layers_[layer.value()][static_cast<std::size_t>(iteration % 2)];
  const std::span<float> all =
      (kind == FactorKind::kOutputGradient ? whole.output_gradients : whole.inputs).floats();
  const std::size_t elements = all.size() / workers_;
  return all.subspan(rank.value() * elements, elements);
}

std::shared_ptr<const void> FactorStacks::owner(LayerIndex layer, Iteration iteration,
                                                FactorKind kind) const {
  const Stack& whole = stack(layer, iteration);
  return (kind == FactorKind::kOutputGradient ? whole.output_gradients : whole.inputs).owner();
}

OwnFactors FactorStacks::own(LayerIndex layer, Iteration iteration) {
  return {part(layer, iteration, FactorKind::kOutputGradient, rank_),
          part(layer, iteration, FactorKind::kInput, rank_)};
}

StackedFactors FactorStacks::stacked(LayerIndex layer, Iteration iteration) const {
  const Stack& whole = stack(layer, iteration);
  return {whole.output_gradients.floats(), whole.inputs.floats()};
}

std::int64_t FactorStacks::memory_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& layer : layers_) {
    for (const Stack& stack : layer) {
      bytes += stack.output_gradients.size_bytes() + stack.inputs.size_bytes();
    }
  }
  return bytes;
}

}  // namespace poseidon
