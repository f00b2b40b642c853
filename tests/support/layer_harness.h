#pragma once

// For tests: runs one layer alone on a device, with values that tests/golden/layers/generate.py can
// draw too.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"
#include "models/net/net.h"
#include "nlohmann/json.hpp"
#include "worker/engine/device.h"

namespace poseidon::testing {

inline constexpr double kFloatEpsilon = 0x1.0p-23;

/// Uniform in [-1, 1), exact in float.
inline std::vector<float> values(std::uint64_t seed, std::int64_t count) {
  SplitMix64 random(seed);
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float& value : result) value = 2.0f * random.uniform() - 1.0f;
  return result;
}

/// The layer `json` (name and inputs are filled in) on an input of `shape`.
LayerSpec layer_on(nlohmann::json json, const Shape& shape);

/// Largest number of products or terms in one sum of the layer, forward or backward: rounding grows
/// with it.
double reduction_length(const LayerSpec& layer, std::int64_t batch);

struct LayerData {
  std::vector<float> input, parameters, statistics, output_gradient;
  std::vector<std::int32_t> labels;
  std::uint64_t first_sample = 0;
  std::int64_t valid_samples = 0;
  Phase phase = Phase::kTrain;
  /// In which the device has them, any but kDevice; kBfloat16 where it loses none of their digits.
  Layout input_layout = Layout::kPlain, output_layout = Layout::kPlain;
  ReluShare relu = ReluShare::kNone;  ///< as in OperatorOptions
};
/// Drawn from mix_seed(seed, 0 to 5) for input, weight, bias, output gradient, labels and running
/// statistics (made positive: they may be variances).
LayerData draw_layer_data(const LayerSpec& layer, std::int64_t batch, std::uint64_t seed);

struct LayerResult {
  std::vector<float> output, statistics, input_gradient, parameter_gradients;
};
/// Forward and (except for accuracy) backward. `wants_input_gradient` false leaves that empty.
LayerResult run_layer(Device& device, const LayerSpec& layer, std::int64_t batch,
                      const LayerData& data, bool wants_input_gradient = true);

/// The pairs of layouts, of input and output, in which an executor may ask the device for the
/// layer: plain ones first.
std::vector<std::pair<Layout, Layout>> layouts_of(const Device& device, const LayerSpec& layer);

/// Every element within `tolerance` of the other; the message says which is not.
::testing::AssertionResult all_near(const std::vector<float>& got, const std::vector<float>& wanted,
                                    double tolerance);

}  // namespace poseidon::testing
