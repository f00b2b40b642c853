// Every layer type on the device under test, over the grid and the special cases that the CPU
// device has to pass too (tests/support/layer_checks.h), and steps from factors.

#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/device_under_test.h"
#include "tests/support/factor_checks.h"
#include "tests/twins/reference_device/reference_device.h"
#include "worker/engine/cpu/cpu_device.h"

namespace poseidon::layers_test {
namespace {

using testing::FactorProblem;
using testing::FactorResult;
using testing::kPrecisions;
using testing::LayerCase;
using testing::LayerCases;

class GpuLayers : public testing::PrecisionTest {
 protected:
  void compare(const std::string& group) {
    for (const LayerCases& cases : testing::layer_grid()) {
      if (cases.name != group) continue;
      std::uint64_t left = cases.cases.size();
      const auto every = static_cast<std::uint64_t>(testing::device_under_test().every);
      for (const LayerCase& one : cases.cases) {
        const std::uint64_t seed = left--;
        if (left % every == 0) testing::compare_layer(*device_, *reference_, one, seed, accuracy_);
      }
      return;
    }
    FAIL() << "no group " << group << " in the grid";
  }

  /// Of images between layers.
  static Layout image_layout() {
    if (GetParam() == "tf32") return Layout::kChannelsLast;
    return GetParam() == "bf16" ? Layout::kBfloat16 : Layout::kPlain;
  }
  static bool keeps_images() { return image_layout() != Layout::kPlain; }

  const std::unique_ptr<Device> reference_ = make_reference_device();
};

TEST_P(GpuLayers, Convolution) { compare("Convolution"); }
TEST_P(GpuLayers, ConvolutionInGroups) { compare("ConvolutionInGroups"); }
TEST_P(GpuLayers, ConvolutionOfPadding) { compare("ConvolutionOfPadding"); }
TEST_P(GpuLayers, Pooling) { compare("Pooling"); }
TEST_P(GpuLayers, PoolingThatHangsOver) { compare("PoolingThatHangsOver"); }
TEST_P(GpuLayers, PoolingOfTheWholePlane) { compare("PoolingOfTheWholePlane"); }
TEST_P(GpuLayers, AveragePoolingThatCountsPadding) { compare("AveragePoolingThatCountsPadding"); }
TEST_P(GpuLayers, BatchNorm) { compare("BatchNorm"); }
TEST_P(GpuLayers, Concat) { compare("Concat"); }
TEST_P(GpuLayers, FullyConnected) { compare("FullyConnected"); }
TEST_P(GpuLayers, ElementByElement) { compare("ElementByElement"); }
TEST_P(GpuLayers, Lrn) { compare("Lrn"); }
TEST_P(GpuLayers, Scores) { compare("Scores"); }

/// Where the emulated GPU's plug-in counts them.
TEST_P(GpuLayers, ConvolutionsHaveChannelsLastAsTensorCoresWantThem) {
  const auto counters = testing::EmulatedCounters::of(*device_);
  if (!counters) GTEST_SKIP() << "only an emulated GPU counts them";
  const LayerSpec layer = testing::layer_on(
      {{"type", "convolution"}, {"outputs", 6}, {"kernel", 3}, {"pad", 1}}, {4, 6, 7});
  auto data = testing::draw_layer_data(layer, 3, 1);
  for (auto* values : {&data.input, &data.output_gradient}) {
    for (float& value : *values) value = testing::accuracy_of("bf16").round(value);
  }
  const bool has_16_bits = GetParam() == "bf16" || GetParam() == "fp16";
  const auto layouts = testing::layouts_of(*device_, layer);
  EXPECT_EQ(layouts.size(), keeps_images() ? 4u : 1u);
  for (const auto& [input, output] : layouts) {
    data.input_layout = input;
    data.output_layout = output;
    const unsigned long before = counters->channels_last();
    testing::run_layer(*device_, layer, 3, data);
    // Each of the three computations when the layer is tried out, and when it runs.
    const bool is_last = has_channels_last(input) || has_channels_last(output);
    EXPECT_EQ(counters->channels_last() - before, has_16_bits || is_last ? 6 : 0);
  }
}

TEST_P(GpuLayers, BiasAndReluArePartOfTheConvolutionWhereItPays) {
  const auto counters = testing::EmulatedCounters::of(*device_);
  if (!counters) GTEST_SKIP() << "only an emulated GPU counts them";
  const auto are_part = [&](nlohmann::json options, ReluShare relu, Layout output) {
    options.update({{"type", "convolution"}, {"kernel", 3}, {"pad", 1}});
    const LayerSpec layer = testing::layer_on(options, {4, 6, 7});
    auto data = testing::draw_layer_data(layer, 3, 1);
    for (float& value : data.output_gradient) value = testing::accuracy_of("bf16").round(value);
    data.output_layout = output;
    data.relu = relu;
    const unsigned long before = counters->biases_behind();
    testing::run_layer(*device_, layer, 3, data);
    return counters->biases_behind() > before;
  };
  constexpr ReluShare kNone = ReluShare::kNone, kForward = ReluShare::kForward;
  if (!keeps_images()) {
    EXPECT_FALSE(are_part({{"outputs", 6}}, kForward, Layout::kPlain));
    return;
  }
  const Layout last = image_layout();
  EXPECT_TRUE(are_part({{"outputs", 6}}, kNone, last));
  EXPECT_TRUE(are_part({{"outputs", 6}}, kForward, last));
  EXPECT_FALSE(are_part({{"outputs", 6}}, kForward, Layout::kPlain)) << "the way back adds it";
  // What the emulated cuDNN makes of these is in emulated/cudnn.cc.
  EXPECT_FALSE(are_part({{"outputs", 11}}, kNone, last)) << "no engine does both";
  EXPECT_FALSE(are_part({{"outputs", 6}, {"groups", 2}}, kNone, last)) << "no tensor cores";
  EXPECT_TRUE(are_part({{"outputs", 7}}, kNone, last));
  const unsigned long before = counters->biases_behind();
  EXPECT_TRUE(are_part({{"outputs", 7}}, kForward, last));
  EXPECT_EQ(counters->biases_behind() - before, 3)
      << "one engine makes 0 of NaN, another is tried out and runs";
  EXPECT_TRUE(are_part({{"outputs", 14}}, kForward, last));
  EXPECT_EQ(counters->biases_behind() - before, 3 + 2) << "both make 0 of NaN";
}

TEST_P(GpuLayers, ImagesHaveChannelsLastFromLayerToLayer) {
  const bool keeps = keeps_images();
  const Layout last = image_layout();
  const auto is_kept = [&](nlohmann::json layer, const Shape& shape, Layout input) {
    const LayerSpec spec = testing::layer_on(std::move(layer), shape);
    const std::vector<Layout> inputs(spec.inputs.size(), input);
    const Layout output = device_->output_layout(spec, inputs);
    EXPECT_TRUE(output == Layout::kPlain || output == last);
    return has_channels_last(output);
  };
  const Shape image = {4, 6, 7};
  const nlohmann::json convolution = {{"type", "convolution"}, {"outputs", 6}, {"kernel", 3}};
  EXPECT_EQ(is_kept(convolution, image, Layout::kPlain), keeps);
  EXPECT_EQ(is_kept(convolution, image, last), keeps);
  EXPECT_FALSE(is_kept(convolution, {4, 3, 3}, last)) << "of one pixel";
  for (const char* type : {"relu", "batch_norm", "lrn", "add", "concat"}) {
    EXPECT_EQ(is_kept({{"type", type}}, image, last), keeps) << type;
    EXPECT_FALSE(is_kept({{"type", type}}, image, Layout::kPlain)) << type;
  }
  for (const char* pool : {"max", "average"}) {
    EXPECT_EQ(is_kept({{"type", "pooling"}, {"pool", pool}, {"kernel", 2}}, image, last), keeps);
  }
  EXPECT_FALSE(is_kept({{"type", "fully_connected"}, {"outputs", 6}}, image, last));
}

TEST_P(GpuLayers, AReluBehindChangesNoBit) {
  std::set<LayerType> taken;
  for (const LayerCases& cases : testing::layer_grid()) {
    std::uint64_t left = cases.cases.size();
    for (const LayerCase& one : cases.cases) {
      // Of convolutions there are many that differ in nothing that matters here.
      const int few = cases.name.starts_with("Convolution") ? 5 : 1;
      if (left-- % static_cast<std::uint64_t>(few * testing::device_under_test().every) != 0)
        continue;
      if (testing::a_relu_behind_changes_no_bit(*device_, one, left, accuracy_)) {
        taken.insert(testing::layer_on(one.layer, one.shape).type);
      }
    }
  }
  if (testing::device_under_test().every > 1) return;
  // Batch normalisation, the two kinds that add a bias to products, and sums.
  EXPECT_EQ(taken.size(), device_->name().starts_with("cuda") ? 4u : 0u);
}

TEST_P(GpuLayers, BatchNormInTests) {
  testing::batch_norm_in_tests(*device_, *reference_, accuracy_);
}
TEST_P(GpuLayers, BatchNormOfLargeMeans) {
  testing::batch_norm_of_large_means(*device_, *reference_, accuracy_);
}
TEST_P(GpuLayers, BatchNormLeavesFillingOut) {
  testing::batch_norm_leaves_filling_out(*device_, *reference_, accuracy_);
}
TEST_P(GpuLayers, OneValuePerChannelHasNoVariance) {
  testing::one_value_per_channel_has_no_variance(*device_);
}
TEST_P(GpuLayers, FillingSamplesCountForNothing) {
  testing::filling_samples_count_for_nothing(*device_, *reference_, accuracy_);
}
TEST_P(GpuLayers, LargeScoresDoNotOverflow) {
  testing::large_scores_do_not_overflow(*device_, accuracy_);
}
TEST_P(GpuLayers, NanIsNotSwallowed) { testing::nan_is_not_swallowed(*device_); }

TEST_P(GpuLayers, TheSameBitsTwice) {
  const auto other = make_device();
  ASSERT_NE(other, nullptr);
  for (const LayerCases& group : testing::layer_grid()) {
    const LayerCase& one = group.cases.back();
    SCOPED_TRACE(group.name);
    const LayerSpec layer = testing::layer_on(one.layer, one.shape);
    const auto data = testing::draw_layer_data(layer, one.batch, 41);
    const auto first = testing::run_layer(*device_, layer, one.batch, data);
    for (Device* device : {device_.get(), other.get()}) {
      const auto again = testing::run_layer(*device, layer, one.batch, data);
      EXPECT_EQ(again.output, first.output);
      EXPECT_EQ(again.statistics, first.statistics);
      EXPECT_EQ(again.input_gradient, first.input_gradient);
      EXPECT_EQ(again.parameter_gradients, first.parameter_gradients);
    }
  }
}

// Layers that go by factors are stepped on the device. Their factors are float32 whatever the
// precision (they travel), so only the product may be coarser.
TEST_P(GpuLayers, StepsFromFactorsAsTheCpu) {
  const auto cpu = make_cpu_device(2);
  for (const FactorProblem& p : testing::factor_problems()) {
    SCOPED_TRACE(p.name());
    const FactorResult wanted = testing::step_twice(*cpu, p);
    const FactorResult got = testing::step_twice(*device_, p);
    // Adam divides the first gradients by their own size: where one is near zero its step has the
    // sign of a rounding error, so a coarse type may be a whole step (of 0.001) off, twice.
    const bool normalised = p.optimizer.type != OptimizerType::kSgd;
    double tolerance = testing::factor_tolerance(p);
    if (!accuracy_.is_float()) {
      tolerance += normalised ? 4 * p.optimizer.learning_rate
                              : accuracy_.tolerance(static_cast<double>(p.rows));
    }
    EXPECT_TRUE(testing::all_near(got.parameters, wanted.parameters, tolerance));
    if (normalised) continue;
    EXPECT_TRUE(testing::all_near(got.state0, wanted.state0, tolerance));
  }
}

TEST_P(GpuLayers, MeasuresFactorsAsTheCpu) {
  const auto cpu = make_cpu_device(2);
  for (const FactorProblem& p : testing::factor_problems()) {
    SCOPED_TRACE(p.name());
    const FactorSquares wanted = testing::measure_first(*cpu, p);
    const FactorSquares got = testing::measure_first(*device_, p);
    double tolerance = testing::square_tolerance(p);
    if (!accuracy_.is_float()) tolerance += 4 * accuracy_.epsilon();
    EXPECT_NEAR(got.weight, wanted.weight, tolerance * wanted.weight + 1e-12);
    EXPECT_NEAR(got.bias, wanted.bias, tolerance * wanted.bias + 1e-12);
  }
  for (const std::int64_t size : {1, 300, 100'003}) {
    const std::vector<float> some = testing::values(4, size);
    const double wanted = testing::measure_values(*cpu, some);
    EXPECT_NEAR(testing::measure_values(*device_, some), wanted, 1e-12 * wanted);
  }
}

TEST_P(GpuLayers, StepsFromFactorsToTheSameBitsTwice) {
  const auto other = make_device();
  ASSERT_NE(other, nullptr);
  for (const FactorProblem& p : testing::factor_problems()) {
    const FactorResult first = testing::step_twice(*device_, p);
    EXPECT_TRUE(testing::step_twice(*device_, p) == first) << p.name();
    EXPECT_TRUE(testing::step_twice(*other, p) == first) << "another device, " << p.name();
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, GpuLayers, ::testing::ValuesIn(kPrecisions),
                         testing::precision_name);

// A layer of more than one tile, the last of which is short, as VGG's are
// (worker/engine/cuda/cuda_factors.cc).
class GpuLargeFactors : public testing::PrecisionTest {};
TEST_P(GpuLargeFactors, AreSteppedAndMeasuredTileByTile) {
  FactorProblem p{.rows = 3, .outputs = 4100, .inputs = 4200, .has_bias = true, .optimizer = {}};
  p.optimizer.momentum = 0.9;
  const auto cpu = make_cpu_device(2);
  const FactorResult wanted = testing::step_twice(*cpu, p), got = testing::step_twice(*device_, p);
  const double tolerance = testing::factor_tolerance(p);
  EXPECT_TRUE(testing::all_near(got.parameters, wanted.parameters, tolerance));
  EXPECT_TRUE(testing::all_near(got.state0, wanted.state0, tolerance));
  const FactorSquares squares = testing::measure_first(*device_, p),
                      right = testing::measure_first(*cpu, p);
  EXPECT_NEAR(squares.weight, right.weight, testing::square_tolerance(p) * right.weight);
  EXPECT_NEAR(squares.bias, right.bias, testing::square_tolerance(p) * right.bias);
}
INSTANTIATE_TEST_SUITE_P(Precisions, GpuLargeFactors, ::testing::Values("fp32"),
                         testing::precision_name);

// PyTorch's values are of inputs with all their digits, so coarse types have their own deviation.
class GpuGolden : public testing::PrecisionTest {};
TEST_P(GpuGolden, LayersMatchPyTorch) { testing::layers_match_pytorch(*device_, accuracy_); }
INSTANTIATE_TEST_SUITE_P(Precisions, GpuGolden, ::testing::Values("fp32"), testing::precision_name);

}  // namespace
}  // namespace poseidon::layers_test
