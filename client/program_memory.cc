#include "client/program_memory.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace poseidon {

ProgramMemory::ProgramMemory(ModelLayout layout)
    : layout_(std::move(layout)), state_(layout_.statistics_count()) {
  for (const LayoutLayer& layer : layout_.layers) {
    layers_.push_back({.parameters = FloatBuffer::sendable(layer.parameter_count()),
                       .gradients = FloatBuffer::sendable(layer.parameter_count()),
                       .initial = {}});
  }
}

std::vector<std::string> ProgramMemory::layer_names() const {
  std::vector<std::string> names;
  for (const LayoutLayer& layer : layout_.layers) names.push_back(layer.name);
  return names;
}

LayerMemory ProgramMemory::layer_memory(std::size_t layer) {
  Layer& one = layers_[layer];
  return {.parameters = one.parameters.floats(),
          .gradients = one.gradients.floats(),
          .owner =
              std::make_shared<std::pair<FloatBuffer, FloatBuffer>>(one.parameters, one.gradients)};
}

void ProgramMemory::remember_initial() {
  for (Layer& layer : layers_) {
    const std::span<const float> values = layer.parameters.floats();
    layer.initial.assign(values.begin(), values.end());
  }
}

void ProgramMemory::restore_initial() {
  for (Layer& layer : layers_) {
    std::ranges::copy(layer.initial, layer.parameters.floats().begin());
  }
}

}  // namespace poseidon
