#include "tests/support/layer_checks.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "nlohmann/json.hpp"

namespace poseidon::testing {
namespace {

using nlohmann::json;

// No engine promises which of several equal values max pooling picks, and a coarse type makes many
// values equal. So all values of a plane differ, and all are values of every type.
void make_planes_distinct(const LayerSpec& layer, std::uint64_t seed, std::vector<float>& input) {
  const std::int64_t plane = layer.input_shape.at(1) * layer.input_shape.at(2);
  POSEIDON_CHECK(plane <= 256, "as many values in [-1, 1) are multiples of 1/128");
  SplitMix64 random(seed);
  std::vector<std::int64_t> order(static_cast<std::size_t>(plane));
  for (std::size_t begin = 0; begin < input.size(); begin += order.size()) {
    std::iota(order.begin(), order.end(), -plane / 2);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    for (std::size_t i = 0; i < order.size(); ++i) {
      input[begin + i] = static_cast<float>(order[i]) / 128.0f;
    }
  }
}

// What the device is given has no more digits than it keeps: then both compute with the same
// values, and what differs is what the device makes of them.
LayerData draw_for(const LayerSpec& layer, std::int64_t batch, std::uint64_t seed,
                   const Accuracy& accuracy) {
  LayerData data = draw_layer_data(layer, batch, seed);
  for (auto* values : {&data.input, &data.parameters, &data.output_gradient}) {
    for (float& value : *values) value = accuracy.round(value);
  }
  const bool picks = layer.type == LayerType::kPooling && layer.pool == LayerSpec::Pool::kMax;
  if (picks && !accuracy.is_float()) make_planes_distinct(layer, seed, data.input);
  return data;
}

double largest(const std::vector<float>& values) {
  double most = 0.0;
  for (const float value : values) most = std::max(most, std::abs(static_cast<double>(value)));
  return most;
}

/// By how much keeping them may move the values.
double rounding_of_keeping(const std::vector<float>& values, Layout layout) {
  return layout == Layout::kBfloat16 ? accuracy_of("bf16").epsilon() / 2 * largest(values) : 0.0;
}

std::string layout_name(Layout layout) {
  if (!has_channels_last(layout)) return "plain";
  return layout == Layout::kBfloat16 ? "bf16" : "channels last";
}

void compare_in_layouts(Device& device, const LayerSpec& layer, std::int64_t batch,
                        const LayerData& data, const LayerResult& wanted,
                        const Accuracy& accuracy) {
  SCOPED_TRACE(layout_name(data.input_layout) + " to " + layout_name(data.output_layout));
  const auto got = run_layer(device, layer, batch, data);
  const double terms = reduction_length(layer, batch);
  // Only products have coarse factors, elsewhere all is float32.
  const bool has_products =
      layer.type == LayerType::kConvolution || layer.type == LayerType::kFullyConnected;
  const double tolerance = (has_products ? accuracy : Accuracy{}).tolerance(terms);
  const auto kept = [&](const std::vector<float>& values, Layout layout) {
    return tolerance + (has_products ? 0.0 : rounding_of_keeping(values, layout));
  };
  EXPECT_TRUE(all_near(got.output, wanted.output, kept(wanted.output, data.output_layout)))
      << "output";
  EXPECT_TRUE(all_near(got.statistics, wanted.statistics, tolerance)) << "running statistics";
  EXPECT_TRUE(all_near(got.input_gradient, wanted.input_gradient,
                       kept(wanted.input_gradient, data.input_layout)))
      << "input gradient";
  EXPECT_TRUE(all_near(got.parameter_gradients, wanted.parameter_gradients, tolerance))
      << "parameter gradients";
  if (layer.parameters.empty()) return;
  const auto partial = run_layer(device, layer, batch, data, false);
  // Coarse types may take another form for three computations than for two (cuda/convolution.cc).
  EXPECT_TRUE(all_near(partial.parameter_gradients, got.parameter_gradients,
                       accuracy.is_float() ? 0.0 : tolerance))
      << "must not depend on whether the data gradient is wanted";
}

}  // namespace

double Accuracy::epsilon() const { return std::ldexp(1.0, 1 - significand_bits); }

float Accuracy::round(float value) const {
  if (is_float() || value == 0.0f || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);  // value = 0.1xxx * 2^exponent
  const int last = std::max(exponent - significand_bits, smallest_exponent);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(value, -last)), last));
}

double Accuracy::tolerance(double terms) const {
  // All values are below 1: each of the n terms of a sum may round by epsilon, and the sum of n
  // terms is of the order of sqrt(n) at most a few times over.
  const double in_float = 2 * kFloatEpsilon * terms;
  if (is_float()) return in_float;
  // A coarse type would make that bound useless for long sums, so here statistics count. Rounding
  // two factors, each by at most epsilon / 2 of itself and evenly, moves a product of two values
  // that are uniform in [-1, 1) by a standard deviation of 0.14 epsilon; n of them are independent
  // and move their sum by 0.14 epsilon sqrt(n); six deviations (a grid has some 10^6 elements)
  // are 0.9 epsilon sqrt(n). Sums stay below 2 sqrt(n) (six deviations of 1/3), so that
  // storing one in the type costs up to another epsilon sqrt(n). Factor 2 to spare, for gradients
  // that pass through a stored output.
  return 4 * epsilon() * std::sqrt(std::max(terms, 1.0)) + in_float;
}

Accuracy accuracy_of(const std::string& precision) {
  if (precision == "fp32") return {};
  if (precision == "tf32")
    return {.name = "tf32", .significand_bits = 11, .smallest_exponent = -136};
  if (precision == "bf16")
    return {.name = "bf16", .significand_bits = 8, .smallest_exponent = -133};
  if (precision == "fp16")
    return {.name = "fp16", .significand_bits = 11, .smallest_exponent = -24};
  POSEIDON_CHECK(false, ("no such precision: " + precision).c_str());
  return {};
}

void compare_layer(Device& device, Device& wanted_device, const LayerCase& one, std::uint64_t seed,
                   const Accuracy& accuracy) {
  SCOPED_TRACE(one.layer.dump() + " on " + shape_to_string(one.shape) + ", batch " +
               std::to_string(one.batch) + ", " + accuracy.name);
  const LayerSpec layer = layer_on(one.layer, one.shape);
  auto data = draw_for(layer, one.batch, seed, accuracy);
  data.first_sample = 1001 + seed;
  const auto wanted = run_layer(wanted_device, layer, one.batch, data);
  for (const auto& [input, output] : layouts_of(device, layer)) {
    data.input_layout = input;
    data.output_layout = output;
    compare_in_layouts(device, layer, one.batch, data, wanted, accuracy);
  }
}

bool a_relu_behind_changes_no_bit(Device& device, const LayerCase& one, std::uint64_t seed,
                                  const Accuracy& accuracy) {
  const LayerSpec layer = layer_on(one.layer, one.shape);
  const ReluShare share = device.takes_relu(layer);
  if (share == ReluShare::kNone) return false;
  SCOPED_TRACE(one.layer.dump() + " on " + shape_to_string(one.shape) + ", batch " +
               std::to_string(one.batch) + ", " + accuracy.name);
  auto data = draw_for(layer, one.batch, seed, accuracy);
  if (one.batch > 2) data.valid_samples = one.batch - 1;
  const auto positive = [](std::vector<float> values) {
    for (float& value : values) value = std::max(value, 0.0f);
    return values;
  };
  for (const auto& [input, output] : layouts_of(device, layer)) {
    data.input_layout = input;
    data.output_layout = output;
    for (const Phase phase : {Phase::kTest, Phase::kTrain}) {
      auto apart = data, together = data;
      apart.phase = together.phase = phase;
      together.relu = share;
      const std::vector<float> outputs = run_layer(device, layer, one.batch, apart).output;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (outputs[i] <= 0.0f) apart.output_gradient[i] = 0.0f;
      }
      // Then the ReLU's own backward comes before the layer's.
      if (share == ReluShare::kForward) together.output_gradient = apart.output_gradient;
      const auto wanted = run_layer(device, layer, one.batch, apart);
      const auto got = run_layer(device, layer, one.batch, together);
      // A convolution with and without the ReLU may be two graphs for cuDNN, and two engines, whose
      // sums are in another order.
      const bool has_two = layer.type == LayerType::kConvolution && has_channels_last(output);
      const double allowed = output == Layout::kBfloat16
                                 ? 2 * rounding_of_keeping(outputs, output)
                                 : Accuracy{}.tolerance(reduction_length(layer, one.batch));
      EXPECT_TRUE(all_near(got.output, positive(outputs), has_two ? allowed : 0.0));
      EXPECT_EQ(got.statistics, wanted.statistics);
      EXPECT_EQ(got.input_gradient, wanted.input_gradient);
      EXPECT_EQ(got.parameter_gradients, wanted.parameter_gradients);
    }
  }
  return true;
}

void batch_norm_in_tests(Device& device, Device& wanted, const Accuracy& accuracy) {
  for (const Shape& shape : {Shape{7}, Shape{3, 5, 7}}) {
    const LayerSpec layer = layer_on({{"type", "batch_norm"}, {"epsilon", 0.01}}, shape);
    auto data = draw_for(layer, 1, 31, accuracy);
    data.phase = Phase::kTest;
    const auto expected = run_layer(wanted, layer, 1, data);
    for (const auto& [input, output] : layouts_of(device, layer)) {
      data.input_layout = input;
      data.output_layout = output;
      const auto got = run_layer(device, layer, 1, data);
      EXPECT_TRUE(
          all_near(got.output, expected.output,
                   Accuracy{}.tolerance(32) + rounding_of_keeping(expected.output, output)));
      EXPECT_EQ(got.statistics, data.statistics) << "tests must not move them";
    }
  }
}

void batch_norm_of_large_means(Device& device, Device& wanted_device, const Accuracy& accuracy) {
  const LayerSpec layer = layer_on({{"type", "batch_norm"}}, {2, 9, 9});
  auto data = draw_layer_data(layer, 3, 32);
  // A coarse type has no values near 1000 that differ by less than their deviation.
  const float mean = accuracy.is_float() ? 1000.0f : 4.0f;
  for (float& value : data.input) value = accuracy.round(value + mean);
  const auto got = run_layer(device, layer, 3, data);
  const auto wanted = run_layer(wanted_device, layer, 3, data);
  // The mean is rounded once, by half an epsilon of it against a deviation of 0.6.
  const double rounding = static_cast<double>(mean) * accuracy.epsilon();
  EXPECT_TRUE(all_near(got.output, wanted.output, rounding));
  EXPECT_TRUE(all_near(got.statistics, wanted.statistics, 0.2 * rounding));
}

void batch_norm_leaves_filling_out(Device& device, Device& wanted_device,
                                   const Accuracy& accuracy) {
  const LayerSpec layer = layer_on({{"type", "batch_norm"}}, {3, 4, 4});
  auto data = draw_for(layer, 4, 33, accuracy);
  data.valid_samples = 3;
  const auto wanted = run_layer(wanted_device, layer, 4, data);
  for (const auto& [input, output] : layouts_of(device, layer)) {
    data.input_layout = input;
    data.output_layout = output;
    const auto got = run_layer(device, layer, 4, data);
    EXPECT_TRUE(all_near(got.statistics, wanted.statistics, Accuracy{}.tolerance(16)));
    EXPECT_TRUE(
        all_near(got.input_gradient, wanted.input_gradient,
                 Accuracy{}.tolerance(32) + rounding_of_keeping(wanted.input_gradient, input)));
    for (std::size_t i = 3 * 48; i < 4 * 48; ++i) EXPECT_EQ(got.input_gradient[i], 0.0f);
  }
}

void one_value_per_channel_has_no_variance(Device& device) {
  const LayerSpec layer = layer_on({{"type", "batch_norm"}}, {4});
  const auto op = device.make_operator(layer, {2, 1, true});
  ASSERT_TRUE(op.ok()) << op.status();
  ForwardArgs args;
  args.valid_samples = 1;
  const absl::Status status = (*op)->forward(args);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("layer 'x': batch normalisation on shape 4 with one sample"),
            absl::string_view::npos)
      << status.message();
}

void filling_samples_count_for_nothing(Device& device, Device& wanted, const Accuracy& accuracy) {
  const LayerSpec layer = layer_on({{"type", "softmax_cross_entropy"}}, {6});
  auto data = draw_for(layer, 4, 77, accuracy);
  data.valid_samples = 3;
  const auto got = run_layer(device, layer, 4, data);
  EXPECT_EQ(got.output[3], 0.0f);
  for (std::size_t i = 18; i < 24; ++i) EXPECT_EQ(got.input_gradient[i], 0.0f);
  EXPECT_TRUE(all_near(got.input_gradient, run_layer(wanted, layer, 4, data).input_gradient,
                       accuracy.tolerance(8)));
}

void large_scores_do_not_overflow(Device& device, const Accuracy& accuracy) {
  const LayerSpec layer = layer_on({{"type", "softmax_cross_entropy"}}, {3});
  auto data = draw_layer_data(layer, 1, 5);
  const float second = accuracy.round(999.0f);
  data.input = {1000.0f, second, -1000.0f};
  data.labels = {2};
  const auto got = run_layer(device, layer, 1, data);
  EXPECT_NEAR(got.output[0], 2000.0 + std::log1p(std::exp(static_cast<double>(second) - 1000.0)),
              2000 * kFloatEpsilon);
}

void nan_is_not_swallowed(Device& device) {
  const std::vector<json> layers = {{{"type", "relu"}},
                                    {{"type", "pooling"}, {"pool", "max"}, {"kernel", 3}},
                                    {{"type", "pooling"}, {"pool", "average"}, {"kernel", 3}},
                                    {{"type", "lrn"}},
                                    {{"type", "concat"}},
                                    {{"type", "convolution"}, {"outputs", 2}, {"kernel", 3}},
                                    {{"type", "convolution"}, {"outputs", 6}, {"kernel", 1}},
                                    {{"type", "convolution"}, {"outputs", 7}, {"kernel", 1}},
                                    {{"type", "convolution"}, {"outputs", 14}, {"kernel", 1}},
                                    {{"type", "fully_connected"}, {"outputs", 2}}};
  for (const json& layer_json : layers) {
    const LayerSpec layer = layer_on(layer_json, {2, 3, 3});
    auto data = draw_for(layer, 1, 6, accuracy_of("bf16"));
    data.input[4] = std::numeric_limits<float>::quiet_NaN();
    data.phase = Phase::kTest;
    for (const auto& [input, output] : layouts_of(device, layer)) {
      data.input_layout = input;
      data.output_layout = output;
      for (const ReluShare relu : {ReluShare::kNone, device.takes_relu(layer)}) {
        data.relu = relu;
        bool has_nan = false;
        for (const float value : run_layer(device, layer, 1, data).output) {
          has_nan |= std::isnan(value);
        }
        EXPECT_TRUE(has_nan) << layer_json.dump() << ", " << layout_name(input) << " to "
                             << layout_name(output)
                             << (relu == ReluShare::kNone ? "" : ", with a ReLU");
      }
    }
  }
}

void layers_match_pytorch(Device& device, const Accuracy& accuracy) {
  std::ifstream file("tests/golden/layers/layers.json");
  ASSERT_TRUE(file) << "run from the repository root";
  const json cases = json::parse(file);
  ASSERT_GE(cases.size(), 30u);
  for (const json& golden : cases) {
    SCOPED_TRACE("seed " + golden["seed"].dump() + ": " + golden["layer"].dump());
    const LayerSpec layer = layer_on(golden["layer"], golden["input"].get<Shape>());
    const std::int64_t batch = golden["batch"];
    const auto data = draw_layer_data(layer, batch, golden["seed"].get<std::uint64_t>());
    const auto result = run_layer(device, layer, batch, data);
    const double tolerance = accuracy.tolerance(reduction_length(layer, batch));
    EXPECT_TRUE(all_near(result.output, golden["output"], tolerance)) << "output";
    EXPECT_TRUE(all_near(result.input_gradient, golden["input_gradient"], tolerance))
        << "input gradient";
    auto parameter_gradients = golden.value("weight_gradient", std::vector<float>{});
    const auto bias = golden.value("bias_gradient", std::vector<float>{});
    parameter_gradients.insert(parameter_gradients.end(), bias.begin(), bias.end());
    EXPECT_TRUE(all_near(result.parameter_gradients, parameter_gradients, tolerance))
        << "parameter gradients";
    if (layer.statistics.empty()) continue;
    EXPECT_TRUE(all_near(result.statistics, golden["statistics"], tolerance)) << "statistics";
    auto testing_data = data;
    testing_data.phase = Phase::kTest;
    EXPECT_TRUE(
        all_near(run_layer(device, layer, batch, testing_data).output, golden["tested"], tolerance))
        << "output in tests";
  }
}

}  // namespace poseidon::testing
