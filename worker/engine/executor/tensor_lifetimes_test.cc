#include "worker/engine/executor/tensor_lifetimes.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"

namespace poseidon::tensor_lifetimes_test {
namespace {

using nlohmann::json;

std::size_t at(int buffer) { return static_cast<std::size_t>(buffer); }

LayerSpec layer(LayerType type, std::vector<std::size_t> inputs) {
  LayerSpec spec;
  spec.type = type;
  spec.inputs = std::move(inputs);
  if (type == LayerType::kConvolution || type == LayerType::kFullyConnected ||
      type == LayerType::kBatchNorm) {
    spec.parameters.resize(1);
  }
  return spec;
}

// Walks the layers as the executor does, but computes tokens instead of values, so that a layer
// that reads a place at the wrong time finds another token there.
class Walk {
 public:
  Walk(const std::vector<LayerSpec>& layers, const std::vector<OutputSpace>& outputs)
      : layers_(layers),
        outputs_(outputs),
        plan_(plan_tensors(layers, outputs)),
        places_(plan_memory(plan_.buffers)),
        memory_(static_cast<std::size_t>(places_.total_bytes / kPlanAlignmentBytes), 0) {}

  void run() {
    for (std::size_t i = 0; i < layers_.size(); ++i) forward(i);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const LayerType type = layers_[i].type;
      if (type == LayerType::kSoftmaxCrossEntropy || type == LayerType::kAccuracy) {
        expect(plan_.layers[i].output, value(i), "result", i);
      }
    }
    find_gradients();
    for (std::size_t i = layers_.size(); i-- > 0;) backward(i);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].type != LayerType::kFullyConnected) continue;
      expect(plan_.layers[i].output_gradient, gradients_[i], "factor dY", i);
      expect_inputs(i, "factor X");
    }
  }

 private:
  static std::uint64_t value(std::size_t i) { return mix_seed(1, i); }
  // Of layer i to the gradient of its k-th input, as it lies there.
  std::uint64_t contribution(std::size_t i, std::size_t k) const {
    const std::size_t input = layers_[i].inputs[k];
    const bool is_as_it_lay =
        input != kNetworkInput && outputs_[input].layout == outputs_[i].layout;
    if (layers_[i].type == LayerType::kAdd && is_as_it_lay) return gradients_[i];
    return mix_seed(gradients_[i], mix_seed(i, k));
  }

  void forward(std::size_t i) {
    expect_inputs(i, "forward");
    write(plan_.layers[i].output, value(i));
  }

  void find_gradients() {
    gradients_.assign(layers_.size(), 0);
    for (std::size_t i = layers_.size(); i-- > 0;) {
      if (!plan_.layers[i].runs_backward) continue;
      for (std::size_t k = 0; k < layers_[i].inputs.size(); ++k) {
        const std::size_t input = layers_[i].inputs[k];
        if (input == kNetworkInput) continue;
        gradients_[input] += contribution(i, k);
      }
    }
  }

  void backward(std::size_t i) {
    const LayerTensors& tensors = plan_.layers[i];
    if (!tensors.runs_backward) return;
    if (layers_[i].type != LayerType::kSoftmaxCrossEntropy) {
      expect(tensors.output_gradient, gradients_[i], "gradient", i);
    }
    if (backward_needs(layers_[i].type).inputs) expect_inputs(i, "backward");
    if (backward_needs(layers_[i].type).output) expect(tensors.output, value(i), "own output", i);
    for (std::size_t k = 0; k < tensors.input_gradients.size(); ++k) {
      const int target = tensors.input_gradients[k].written;
      if (target != kNoBuffer) write(target, contribution(i, k));
    }
    for (const auto& [written, added_to] : tensors.input_gradients) {
      if (added_to == kNoBuffer) continue;
      for (std::size_t cell = 0; cell < cells(written); ++cell) {
        memory_[begin(added_to) + cell] += memory_[begin(written) + cell];
      }
    }
  }

  void expect_inputs(std::size_t i, const char* when) {
    for (const std::size_t input : layers_[i].inputs) {
      if (input != kNetworkInput) expect(plan_.layers[input].output, value(input), when, i);
    }
  }

  std::size_t begin(int buffer) const {
    return static_cast<std::size_t>(places_.offsets[at(buffer)] / kPlanAlignmentBytes);
  }
  std::size_t cells(int buffer) const {
    return static_cast<std::size_t>(plan_.buffers[at(buffer)].bytes / kPlanAlignmentBytes);
  }
  void write(int buffer, std::uint64_t token) {
    std::fill_n(memory_.begin() + static_cast<std::ptrdiff_t>(begin(buffer)), cells(buffer), token);
  }
  void expect(int buffer, std::uint64_t token, const char* what, std::size_t i) {
    ASSERT_NE(buffer, kNoBuffer) << what << " of layer " << i;
    for (std::size_t cell = 0; cell < cells(buffer); ++cell) {
      ASSERT_EQ(memory_[begin(buffer) + cell], token) << what << " of layer " << i;
    }
  }

  const std::vector<LayerSpec>& layers_;
  const std::vector<OutputSpace>& outputs_;
  const TensorPlan plan_;
  const MemoryPlan places_;
  std::vector<std::uint64_t> memory_;     // one token per unit of alignment
  std::vector<std::uint64_t> gradients_;  // what the gradient of each output must be
};

struct RandomNet {
  std::vector<LayerSpec> layers;
  std::vector<OutputSpace> outputs;
};

// Branches, repeated inputs, chains that work in place, layers before any parameters.
RandomNet random_net(std::uint64_t seed) {
  constexpr LayerType kTypes[] = {LayerType::kConvolution, LayerType::kRelu,
                                  LayerType::kRelu,        LayerType::kDropout,
                                  LayerType::kAdd,         LayerType::kAdd,
                                  LayerType::kBatchNorm,   LayerType::kPooling,
                                  LayerType::kConcat,      LayerType::kFullyConnected};
  SplitMix64 random(seed);
  RandomNet net;
  const auto pick = [&] {
    // Mostly the layer before, at times any earlier one or the data.
    if (net.layers.empty() || random.below(12) == 0) return kNetworkInput;
    if (random.below(3) != 0) return net.layers.size() - 1;
    return static_cast<std::size_t>(random.below(net.layers.size()));
  };
  constexpr std::int64_t kDataBytes = 256;
  const auto bytes_of = [&](std::size_t input) {
    return input == kNetworkInput ? kDataBytes : net.outputs[input].bytes;
  };
  for (int i = 0; i < 25; ++i) {
    const LayerType type = kTypes[random.below(std::size(kTypes))];
    std::vector<std::size_t> inputs = {pick()};
    std::int64_t bytes = 64 * (1 + static_cast<std::int64_t>(random.below(6)));
    // Kept in another layout it may have other bytes, or as many.
    const Layout layout = random.below(3) == 0 ? Layout::kDevice : Layout::kPlain;
    if (works_in_place(type) && random.below(4) != 0) bytes = bytes_of(inputs.front());
    if (type == LayerType::kAdd || type == LayerType::kConcat) {
      for (int more = 0; more < 4; ++more) {
        const std::size_t other = pick();
        if (type == LayerType::kConcat || bytes_of(other) == bytes) inputs.push_back(other);
      }
    }
    net.layers.push_back(layer(type, inputs));
    net.outputs.push_back({bytes, layout});
  }
  std::vector<std::size_t> unread;
  for (std::size_t i = 0; i < net.layers.size(); ++i) {
    const bool is_read = std::any_of(net.layers.begin(), net.layers.end(), [&](const auto& other) {
      return std::count(other.inputs.begin(), other.inputs.end(), i) > 0;
    });
    if (!is_read) unread.push_back(i);
  }
  const std::size_t first = net.layers.size();
  net.layers.push_back(layer(LayerType::kConcat, unread));
  net.layers.push_back(layer(LayerType::kFullyConnected, {first}));
  net.layers.push_back(layer(LayerType::kSoftmaxCrossEntropy, {first + 1}));
  net.layers.push_back(layer(LayerType::kAccuracy, {first + 1}));
  for (const std::int64_t bytes : {640, 128, 64, 64}) net.outputs.push_back({.bytes = bytes});
  return net;
}

TEST(TensorLifetimes, WhatIsReadIsWhatWasWritten) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RandomNet net = random_net(seed);
    Walk(net.layers, net.outputs).run();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

std::int64_t planned_bytes(const std::vector<LayerSpec>& layers, std::int64_t bytes) {
  const std::vector<OutputSpace> outputs(layers.size(), {.bytes = bytes});
  return plan_memory(plan_tensors(layers, outputs).buffers).total_bytes;
}

TEST(TensorLifetimes, AResidualBlockKeepsWhatItsBackwardReadsAndNoMore) {
  // conv, then twice (conv, batch_norm, relu) with a sum before the last relu, fc, loss.
  const std::vector<LayerSpec> layers = {layer(LayerType::kConvolution, {kNetworkInput}),
                                         layer(LayerType::kConvolution, {0}),
                                         layer(LayerType::kBatchNorm, {1}),
                                         layer(LayerType::kRelu, {2}),
                                         layer(LayerType::kConvolution, {3}),
                                         layer(LayerType::kBatchNorm, {4}),
                                         layer(LayerType::kAdd, {5, 0}),
                                         layer(LayerType::kRelu, {6}),
                                         layer(LayerType::kFullyConnected, {7}),
                                         layer(LayerType::kSoftmaxCrossEntropy, {8})};
  const TensorPlan plan =
      plan_tensors(layers, std::vector<OutputSpace>(layers.size(), {.bytes = 64}));
  EXPECT_EQ(plan.layers[3].output, plan.layers[2].output) << "relu in place";
  EXPECT_EQ(plan.layers[7].output, plan.layers[5].output) << "sum and relu in place";
  EXPECT_NE(plan.layers[2].output, plan.layers[1].output) << "batch_norm reads its input again";
  EXPECT_EQ(plan.layers[5].output_gradient, plan.layers[7].output_gradient);
  EXPECT_EQ(plan.layers[0].output_gradient, plan.layers[7].output_gradient)
      << "nothing is added to the shortcut's gradient until the other branch has read it";
  EXPECT_EQ(plan.layers[1].output_gradient != plan.layers[2].output_gradient, true);
  // Kept: outputs of 0, 1, 3, 4, 7; scores, loss. In backward two gradients at a time besides the
  // sum's shortcut; when the first is written, scores and loss are over but for the factor.
  EXPECT_LE(planned_bytes(layers, 1 << 20), 8 << 20);
  EXPECT_GE(planned_bytes(layers, 1 << 20), 7 << 20);
}

TEST(TensorLifetimes, OnlyWhatLiesAlikeTakesTheSamePlace) {
  const std::vector<LayerSpec> layers = {
      layer(LayerType::kConvolution, {kNetworkInput}), layer(LayerType::kBatchNorm, {0}),
      layer(LayerType::kRelu, {1}), layer(LayerType::kFullyConnected, {2}),
      layer(LayerType::kSoftmaxCrossEntropy, {3})};
  for (const OutputSpace& kept :
       {OutputSpace{640}, OutputSpace{1280}, OutputSpace{640, Layout::kDevice}}) {
    const std::vector<OutputSpace> outputs = {{640}, {640}, kept, {64}, {64}};
    const TensorPlan plan = plan_tensors(layers, outputs);
    const LayerTensors& relu = plan.layers[2];
    const bool is_alike = kept.bytes == 640 && kept.layout == Layout::kPlain;
    EXPECT_EQ(relu.output == plan.layers[1].output, is_alike);
    EXPECT_EQ(relu.output_gradient == relu.input_gradients[0].written, is_alike);
    EXPECT_EQ(plan.buffers[at(relu.output)].bytes, kept.bytes);
    EXPECT_EQ(plan.buffers[at(relu.output_gradient)].bytes, kept.bytes);
    EXPECT_EQ(plan.buffers[at(relu.input_gradients[0].written)].bytes, 640);
  }
}

TEST(TensorLifetimes, ADeepChainNeedsLittleMoreThanItsOutputs) {
  std::vector<LayerSpec> layers = {layer(LayerType::kConvolution, {kNetworkInput})};
  while (layers.size() < 60) {
    layers.push_back(layer(LayerType::kRelu, {layers.size() - 1}));
    layers.push_back(layer(LayerType::kConvolution, {layers.size() - 1}));
  }
  layers.push_back(layer(LayerType::kFullyConnected, {layers.size() - 1}));
  layers.push_back(layer(LayerType::kSoftmaxCrossEntropy, {layers.size() - 1}));
  // 31 convolutions whose outputs are kept (ReLUs are in place), scores, loss, two gradients.
  EXPECT_LE(planned_bytes(layers, 1 << 20), std::int64_t{36} << 20);
}

TEST(TensorLifetimes, NothingBelowTheFirstParametersRunsBackward) {
  const std::vector<LayerSpec> layers = {
      layer(LayerType::kPooling, {kNetworkInput}), layer(LayerType::kRelu, {0}),
      layer(LayerType::kFullyConnected, {1}), layer(LayerType::kSoftmaxCrossEntropy, {2}),
      layer(LayerType::kAccuracy, {2})};
  const TensorPlan plan =
      plan_tensors(layers, std::vector<OutputSpace>(layers.size(), {.bytes = 64}));
  EXPECT_FALSE(plan.layers[1].runs_backward);
  EXPECT_TRUE(plan.layers[2].runs_backward);
  EXPECT_EQ(plan.layers[2].input_gradients[0].written, kNoBuffer);
  EXPECT_FALSE(plan.layers[4].runs_backward);
}

}  // namespace
}  // namespace poseidon::tensor_lifetimes_test
