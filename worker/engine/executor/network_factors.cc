// The NetworkExecutor's part for layers that are stepped from factors.

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/engine/executor/network_executor.h"

namespace poseidon {
absl::Status NetworkExecutor::keep_factors(LayerIndex layer, int optimizer_slots) {
  POSEIDON_CHECK(layer.value() < gradients_.size(), "no such parameter layer");
  const LayerSpec& spec = net_.layers[net_.parameter_layers()[layer.value()]];
  if (spec.type != LayerType::kFullyConnected) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer '", spec.name, "' has no factors: it is no ", "fully connected layer"));
  }
  if (!device_->shares_host_memory()) {
    const std::int64_t row = options_.batch_size * kFloatBytes;
    Return& place = returns_[layer.value()];
    POSEIDON_ASSIGN_OR_RETURN(place.output_gradient,
                              device_->allocate_host(row * element_count(spec.output_shape)));
    POSEIDON_ASSIGN_OR_RETURN(place.input,
                              device_->allocate_host(row * element_count(spec.input_shape)));
  }
  gradients_[layer.value()] = ParameterRange{};  // first: there may be no room for both
  POSEIDON_ASSIGN_OR_RETURN(
      factors_[layer.value()],
      FactorMemory::create(device_.get(), parameters(layer), parameters_[layer.value()].device_data,
                           optimizer_slots));
  return absl::OkStatus();
}

absl::StatusOr<FloatBuffer> NetworkExecutor::allocate_factors(std::int64_t elements) {
  POSEIDON_ASSIGN_OR_RETURN(DeviceMemory memory, device_->allocate_host(elements * kFloatBytes));
  const auto deleter = memory.get_deleter();
  return FloatBuffer(std::shared_ptr<float>(static_cast<float*>(memory.release()), deleter),
                     elements);
}

std::size_t NetworkExecutor::factor_node(LayerIndex layer) const {
  POSEIDON_CHECK(layer.value() < factors_.size() && factors_[layer.value()] != nullptr,
                 "a layer whose factors are kept");
  return net_.parameter_layers()[layer.value()];
}

FactorMemory& NetworkExecutor::factor_memory(LayerIndex layer) const {
  POSEIDON_CHECK(layer.value() < factors_.size() && factors_[layer.value()] != nullptr,
                 "a layer whose factors are kept");
  return *factors_[layer.value()];
}

absl::Status NetworkExecutor::copy_factors(LayerIndex layer, std::span<float> output_gradient,
                                           std::span<float> input) {
  const std::size_t index = factor_node(layer);
  const Node& node = nodes_[index];
  const std::int64_t inputs = options_.batch_size * element_count(net_.layers[index].input_shape);
  POSEIDON_CHECK(static_cast<std::int64_t>(output_gradient.size()) == node.output_elements &&
                     static_cast<std::int64_t>(input.size()) == inputs,
                 "factors of one batch");
  if (!device_->shares_host_memory()) {  // return_layer brought them
    const Return& place = returns_[layer.value()];
    std::memcpy(output_gradient.data(), place.output_gradient.get(), output_gradient.size_bytes());
    std::memcpy(input.data(), place.input.get(), input.size_bytes());
    return absl::OkStatus();
  }
  POSEIDON_RETURN_IF_ERROR(device_->download(output_gradient.data(), node.output_gradient,
                                             node.output_elements * kFloatBytes));
  return device_->download(input.data(), node.inputs[0], inputs * kFloatBytes);
}

FactorStepArgs NetworkExecutor::factor_args(LayerIndex layer,
                                            std::span<const float> output_gradients,
                                            std::span<const float> inputs) {
  const LayerSpec& spec = net_.layers[factor_node(layer)];
  FactorStepArgs args;
  args.outputs = spec.output_shape.front();
  args.inputs = element_count(spec.input_shape);
  args.rows = static_cast<std::int64_t>(inputs.size()) / args.inputs;
  args.has_bias = spec.parameters.size() > 1;
  POSEIDON_CHECK(static_cast<std::int64_t>(inputs.size()) == args.rows * args.inputs &&
                     static_cast<std::int64_t>(output_gradients.size()) == args.rows * args.outputs,
                 "both factors of as many rows");
  args.output_gradients = output_gradients.data();
  args.input_values = inputs.data();
  if (!device_->shares_host_memory()) {
    args.marks =
        times_.copy(Stage::kUploadFactors, layer,
                    static_cast<std::int64_t>(output_gradients.size_bytes() + inputs.size_bytes()));
  }
  return args;
}

absl::Status NetworkExecutor::step_from_factors(LayerIndex layer, const FactorStep& step) {
  FactorStepArgs args = factor_args(layer, step.output_gradients, step.inputs);
  args.weight_step = step.weight_step;
  args.bias_step = step.bias_step;
  FactorMemory& memory = factor_memory(layer);
  POSEIDON_RETURN_IF_ERROR(memory.bring_up());
  args.parameters = memory.parameters();
  args.state0 = memory.slot(0);
  args.state1 = memory.slot(1);
  memory.stepped();
  return device_->step_from_factors(args);
}

absl::StatusOr<FactorSquares> NetworkExecutor::measure_factors(
    LayerIndex layer, std::span<const float> output_gradients, std::span<const float> inputs) {
  return device_->measure_factors(factor_args(layer, output_gradients, inputs));
}

absl::StatusOr<FactorSquares> NetworkExecutor::measure_parameters(LayerIndex layer) {
  const LayerSpec& spec = net_.layers[factor_node(layer)];
  FactorMemory& memory = factor_memory(layer);
  POSEIDON_RETURN_IF_ERROR(memory.bring_up());
  const std::int64_t weights = element_count(spec.parameters.front().shape);
  const std::int64_t biases = spec.parameter_count() - weights;
  const float* const values = memory.parameters().data();
  FactorSquares squares;
  POSEIDON_ASSIGN_OR_RETURN(squares.weight, device_->square_sum(values, weights));
  POSEIDON_ASSIGN_OR_RETURN(squares.bias, device_->square_sum(values + weights, biases));
  return squares;
}

absl::Status NetworkExecutor::fetch_parameters(LayerIndex layer) {
  return factor_memory(layer).fetch_parameters();
}

absl::Status NetworkExecutor::read_state(LayerIndex layer, const StateRange& range,
                                         std::span<float> values) {
  return factor_memory(layer).read(range, values);
}

absl::Status NetworkExecutor::write_state(LayerIndex layer, const StateRange& range,
                                          std::span<const float> values) {
  return factor_memory(layer).write(range, values);
}

absl::Status NetworkExecutor::hold_state(LayerIndex layer, std::span<const StateRange> ranges) {
  return factor_memory(layer).hold(ranges);
}

absl::Status NetworkExecutor::read_held_state(LayerIndex layer, const StateRange& range,
                                              std::span<float> values) {
  return factor_memory(layer).read_held(range, values);
}

}  // namespace poseidon
