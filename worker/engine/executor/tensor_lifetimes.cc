#include "worker/engine/executor/tensor_lifetimes.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace poseidon {
namespace {

class Planner {
 public:
  Planner(std::span<const LayerSpec> layers, std::span<const OutputSpace> outputs)
      : layers_(layers), outputs_(outputs), end_(2 * static_cast<std::int64_t>(layers.size()) + 1) {
    plan_.layers.resize(layers.size());
  }

  TensorPlan run() {
    find_backward();
    find_last_reads();
    for (std::size_t i = 0; i < layers_.size(); ++i) place_output(i);
    for (std::size_t i = layers_.size(); i-- > 0;) place_gradients(i);
    return std::move(plan_);
  }

 private:
  std::int64_t forward_step(std::size_t layer) const { return static_cast<std::int64_t>(layer); }
  std::int64_t results_step() const { return static_cast<std::int64_t>(layers_.size()); }
  std::int64_t backward_step(std::size_t layer) const {
    return 2 * results_step() - static_cast<std::int64_t>(layer);
  }
  static std::size_t at(int buffer) { return static_cast<std::size_t>(buffer); }

  int add_buffer(std::int64_t bytes, std::int64_t first, std::int64_t last) {
    plan_.buffers.push_back({bytes, first, last});
    return static_cast<int>(plan_.buffers.size()) - 1;
  }
  void live_until(int buffer, std::int64_t step) {
    BufferUse& use = plan_.buffers[at(buffer)];
    use.last_step = std::max(use.last_step, step);
  }

  static bool is_result(LayerType type) {
    return type == LayerType::kSoftmaxCrossEntropy || type == LayerType::kAccuracy;
  }
  /// Whether gradients come to this input.
  bool wants_gradient(std::size_t input) const {
    return input != kNetworkInput && plan_.layers[input].runs_backward;
  }

  // A layer runs backward if a parameter layer is at or before it.
  void find_backward() {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      bool runs = !layers_[i].parameters.empty();
      for (const std::size_t input : layers_[i].inputs) runs |= wants_gradient(input);
      plan_.layers[i].runs_backward = runs && layers_[i].type != LayerType::kAccuracy;
    }
  }

  void find_last_reads() {
    readers_.resize(layers_.size());
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      for (const std::size_t input : layers_[i].inputs) {
        if (input != kNetworkInput) readers_[input].push_back(i);
      }
      const LayerSpec& layer = layers_[i];
      const BackwardNeeds needs = backward_needs(layer.type);
      const bool backward = plan_.layers[i].runs_backward;
      std::int64_t own = is_result(layer.type) ? results_step() : forward_step(i);
      if (backward && needs.output) own = backward_step(i);
      last_read_.push_back(own);
      std::int64_t of_inputs = forward_step(i);
      if (backward && needs.inputs) of_inputs = backward_step(i);
      if (layer.type == LayerType::kFullyConnected) of_inputs = end_;
      for (const std::size_t input : layer.inputs) {
        if (input != kNetworkInput) last_read_[input] = std::max(last_read_[input], of_inputs);
      }
    }
  }

  void place_output(std::size_t i) {
    const LayerSpec& layer = layers_[i];
    const std::size_t input = layer.inputs.front();
    // A repeated input would be overwritten before it is read again.
    const bool in_place =
        can_work_in_place(layer, i, input) && last_read_[input] == forward_step(i);
    if (in_place) {
      plan_.layers[i].output = plan_.layers[input].output;
      live_until(plan_.layers[i].output, last_read_[i]);
    } else {
      plan_.layers[i].output = add_buffer(outputs_[i].bytes, forward_step(i), last_read_[i]);
    }
  }

  // Of the output, or its gradient, and the same of this input.
  bool can_work_in_place(const LayerSpec& layer, std::size_t i, std::size_t input) const {
    return works_in_place(layer.type) && input != kNetworkInput &&
           outputs_[input].bytes == outputs_[i].bytes &&
           outputs_[input].layout == outputs_[i].layout && !repeats_an_input(layer);
  }

  static bool repeats_an_input(const LayerSpec& layer) {
    std::vector<std::size_t> inputs = layer.inputs;
    std::sort(inputs.begin(), inputs.end());
    return std::adjacent_find(inputs.begin(), inputs.end()) != inputs.end();
  }

  // Whether two inputs of layer i, which hands the gradient of its output on as it is, may have it
  // in one place. The later of the two reads it first, in its own backward; it must have nothing
  // else to add to it and not work in it itself, and every layer that adds to the earlier one's, or
  // works in it, must come after that. So it is with the two branches of a residual block, one of
  // which is the block's input (He et al. 2016, figure 2).
  bool may_share_gradient(std::size_t i, std::size_t one, std::size_t other) const {
    const std::size_t later = std::max(one, other), earlier = std::min(one, other);
    const LayerType type = layers_[later].type;
    // What a fully connected layer got must stay until the end.
    if (works_in_place(type) || type == LayerType::kFullyConnected) return false;
    const auto is_after = [&](std::size_t reader) { return reader == i || reader <= later; };
    return readers_[later].size() == 1 &&
           std::all_of(readers_[earlier].begin(), readers_[earlier].end(), is_after);
  }

  // Called last layer first, so that a layer's output gradient has its buffer before.
  void place_gradients(std::size_t i) {
    LayerTensors& tensors = plan_.layers[i];
    const LayerSpec& layer = layers_[i];
    if (!tensors.runs_backward) return;
    const std::int64_t step = backward_step(i);
    const int own = tensors.output_gradient;
    POSEIDON_CHECK(own != kNoBuffer || is_result(layer.type), "a loss reads every other layer");
    if (own != kNoBuffer) {
      live_until(own, layer.type == LayerType::kFullyConnected ? end_ : step);
    }
    std::vector<std::size_t> takers;  // of the output's gradient as their own
    for (const std::size_t input : layer.inputs) {
      LayerTensors::InputGradient& gradient = tensors.input_gradients.emplace_back();
      if (!wants_gradient(input)) continue;
      int& target = plan_.layers[input].output_gradient;
      if (target != kNoBuffer) {
        // Added right after this step: what passes through unchanged needs no place of its own.
        const bool passes_through = can_work_in_place(layer, i, input);
        gradient.written = passes_through ? own : add_buffer(outputs_[input].bytes, step, step);
        gradient.added_to = target;
        continue;
      }
      const auto may_share = [&](std::size_t taker) { return may_share_gradient(i, input, taker); };
      const bool in_place = can_work_in_place(layer, i, input) &&
                            std::all_of(takers.begin(), takers.end(), may_share);
      target = in_place ? own : add_buffer(outputs_[input].bytes, step, step);
      if (in_place) takers.push_back(input);
      gradient.written = target;
    }
  }

  const std::span<const LayerSpec> layers_;
  const std::span<const OutputSpace> outputs_;
  const std::int64_t end_;
  std::vector<std::int64_t> last_read_;            // step, per layer's output
  std::vector<std::vector<std::size_t>> readers_;  // layers, per layer's output
  TensorPlan plan_;
};

}  // namespace

BackwardNeeds backward_needs(LayerType type) {
  switch (type) {
    case LayerType::kConvolution:
    case LayerType::kFullyConnected:
    case LayerType::kLrn:
    case LayerType::kBatchNorm:
    case LayerType::kSoftmaxCrossEntropy:
      return {.inputs = true, .output = false};
    case LayerType::kRelu:
      return {.inputs = false, .output = true};
    case LayerType::kPooling:  // operators keep which element was the largest
    case LayerType::kDropout:  // the mask is drawn again
    case LayerType::kAdd:
    case LayerType::kConcat:
    case LayerType::kAccuracy:
      break;
  }
  return {};
}

bool works_in_place(LayerType type) {
  return type == LayerType::kRelu || type == LayerType::kDropout || type == LayerType::kAdd;
}

TensorPlan plan_tensors(std::span<const LayerSpec> layers, std::span<const OutputSpace> outputs) {
  POSEIDON_CHECK(layers.size() == outputs.size(), "a size per layer");
  return Planner(layers, outputs).run();
}

}  // namespace poseidon
