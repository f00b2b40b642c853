#pragma once

// For tests of the executor: a small network, a batch, and a pass over both.

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"
#include "models/net/initialise.h"
#include "nlohmann/json.hpp"
#include "tests/support/layer_harness.h"
#include "worker/engine/executor.h"

namespace poseidon::testing {

// conv "a" feeds three layers; "left" and "right" meet again; a dropout before the end.
inline NetSpec branched(double dropout_ratio = 0.0, const char* left_type = "relu") {
  const nlohmann::json net = {
      {"name", "branched"},
      {"input", {2, 7, 5}},
      {"layers",
       {{{"name", "a"}, {"type", "convolution"}, {"outputs", 3}, {"kernel", 3}, {"pad", 1}},
        {{"name", "left"}, {"type", left_type}, {"inputs", {"a"}}},
        {{"name", "b"}, {"type", "convolution"}, {"outputs", 3}, {"kernel", 1}, {"inputs", {"a"}}},
        {{"name", "sum"}, {"type", "add"}, {"inputs", {"left", "b", "a"}}},
        {{"name", "pool"}, {"type", "pooling"}, {"pool", "average"}, {"kernel", 3}, {"stride", 2}},
        {{"name", "drop"}, {"type", "dropout"}, {"ratio", dropout_ratio}},
        {{"name", "fc"}, {"type", "fully_connected"}, {"outputs", 4}},
        {{"name", "loss"}, {"type", "softmax_cross_entropy"}},
        {{"name", "top1"}, {"type", "accuracy"}, {"inputs", {"fc"}}}}}};
  const auto spec = parse_network(net);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return *spec;
}

inline Batch make_batch(const NetSpec& net, std::int64_t samples, std::uint64_t seed) {
  Batch batch;
  batch.samples = batch.valid_samples = samples;
  batch.images = values(mix_seed(seed, 0), samples * element_count(net.input_shape));
  SplitMix64 random(seed);
  for (std::int64_t i = 0; i < samples; ++i) {
    batch.labels.push_back(
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(net.classes))));
  }
  return batch;
}

inline void initialise(Executor& executor, std::uint64_t seed) {
  initialise_parameters(executor.net(), seed,
                        [&](LayerIndex layer) { return executor.parameters(layer); });
}

inline std::vector<std::vector<float>> all_gradients(Executor& executor) {
  std::vector<std::vector<float>> result;
  for (std::uint32_t i = 0; i < executor.net().parameter_layers().size(); ++i) {
    const auto gradient = executor.gradients(LayerIndex(i));
    result.emplace_back(gradient.begin(), gradient.end());
  }
  return result;
}

inline ForwardResult run(Executor& executor, const Batch& batch, const ExecutionHooks& hooks = {}) {
  const auto result = executor.forward(batch, Phase::kTrain, hooks);
  EXPECT_TRUE(result.ok()) << result.status().message();
  const absl::Status status = executor.backward(hooks);
  EXPECT_TRUE(status.ok()) << status.message();
  return result.ok() ? *result : ForwardResult{};
}

}  // namespace poseidon::testing
