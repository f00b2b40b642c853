// The CPU device against its twin over a grid of awkward sizes: batch 1, odd sizes, padding,
// strides, groups, windows that overhang, rows that fill no vector.

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/layer_harness.h"
#include "worker/engine/reference/reference_device.h"

namespace poseidon {
namespace {

using nlohmann::json;
using testing::all_near;

class LayerGrid : public ::testing::TestWithParam<int> {
 protected:
  void compare(const json& layer_json, const Shape& shape, std::int64_t batch) {
    SCOPED_TRACE(layer_json.dump() + " on " + shape_to_string(shape) + ", batch " +
                 std::to_string(batch));
    const LayerSpec layer = testing::layer_on(layer_json, shape);
    auto data = testing::draw_layer_data(layer, batch, seed_++);
    data.first_sample = 1000 + seed_;
    const auto got = testing::run_layer(*cpu_, layer, batch, data);
    const auto wanted = testing::run_layer(*reference_, layer, batch, data);
    const double tolerance = 2 * testing::kFloatEpsilon * testing::reduction_length(layer, batch);
    EXPECT_TRUE(all_near(got.output, wanted.output, tolerance)) << "output";
    EXPECT_TRUE(all_near(got.statistics, wanted.statistics, tolerance)) << "running statistics";
    EXPECT_TRUE(all_near(got.input_gradient, wanted.input_gradient, tolerance)) << "input gradient";
    EXPECT_TRUE(all_near(got.parameter_gradients, wanted.parameter_gradients, tolerance))
        << "parameter gradients";
    if (!layer.parameters.empty()) {
      const auto partial = testing::run_layer(*cpu_, layer, batch, data, false);
      EXPECT_EQ(partial.parameter_gradients, got.parameter_gradients)
          << "must not depend on whether the data gradient is wanted";
    }
  }

  const std::unique_ptr<Device> cpu_ = make_cpu_device(GetParam());
  const std::unique_ptr<Device> reference_ = make_reference_device();
  std::uint64_t seed_ = 1;
};

TEST_P(LayerGrid, Convolution) {
  for (const std::int64_t batch : {1, 3}) {
    for (const Shape& shape : {Shape{1, 9, 7}, Shape{4, 8, 8}, Shape{18, 7, 5}}) {
      for (const int kernel : {1, 3, 5}) {
        for (const int stride : {1, 2}) {
          const json layer = {{"type", "convolution"},
                              {"outputs", 6},
                              {"kernel", kernel},
                              {"stride", stride},
                              {"pad", kernel / 2}};
          compare(layer, shape, batch);
        }
      }
    }
  }
  compare({{"type", "convolution"}, {"outputs", 20}, {"kernel", 5}}, {1, 28, 28}, 2);
  compare({{"type", "convolution"}, {"outputs", 17}, {"kernel", {1, 7}}}, {3, 7, 9}, 2);
  compare({{"type", "convolution"}, {"outputs", 3}, {"kernel", 3}, {"stride", 4}, {"bias", false}},
          {5, 11, 10}, 1);
}

TEST_P(LayerGrid, ConvolutionInGroups) {
  for (const int groups : {2, 3, 6}) {
    compare(
        {{"type", "convolution"}, {"outputs", 12}, {"kernel", 3}, {"pad", 1}, {"groups", groups}},
        {6, 7, 6}, 2);
  }
  compare({{"type", "convolution"}, {"outputs", 32}, {"kernel", 3}, {"groups", 2}}, {32, 5, 5}, 1);
}

TEST_P(LayerGrid, Pooling) {
  for (const char* pool : {"max", "average"}) {
    for (const std::int64_t batch : {1, 2}) {
      for (const Shape& shape : {Shape{1, 7, 6}, Shape{5, 8, 9}, Shape{16, 5, 5}}) {
        for (const int kernel : {1, 2, 3}) {
          for (const int stride : {1, 2, 3}) {
            for (const bool ceil_mode : {false, true}) {
              compare({{"type", "pooling"},
                       {"pool", pool},
                       {"kernel", kernel},
                       {"stride", stride},
                       {"pad", kernel / 2},
                       {"ceil_mode", ceil_mode}},
                      shape, batch);
            }
          }
        }
      }
    }
  }
}

TEST_P(LayerGrid, PoolingOfTheWholePlane) {
  for (const char* pool : {"max", "average"}) {
    for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 7, 5}, Shape{17, 8, 8}}) {
      compare({{"type", "pooling"}, {"pool", pool}, {"global", true}}, shape, 2);
    }
  }
}

TEST_P(LayerGrid, AveragePoolingThatCountsPadding) {
  for (const Shape& shape : {Shape{1, 7, 6}, Shape{5, 8, 9}, Shape{16, 5, 5}}) {
    for (const int kernel : {2, 3, 5}) {
      for (const int stride : {1, 2, 3}) {
        for (const bool ceil_mode : {false, true}) {
          compare({{"type", "pooling"},
                   {"pool", "average"},
                   {"kernel", kernel},
                   {"stride", stride},
                   {"pad", kernel / 2},
                   {"ceil_mode", ceil_mode},
                   {"count_padding", true}},
                  shape, 2);
        }
      }
    }
  }
}

TEST_P(LayerGrid, BatchNorm) {
  for (const std::int64_t batch : {2, 5}) {
    for (const Shape& shape : {Shape{1, 3, 2}, Shape{3, 5, 7}, Shape{17, 8, 8}, Shape{2, 70, 41}}) {
      compare({{"type", "batch_norm"}}, shape, batch);
      compare({{"type", "batch_norm"}, {"epsilon", 0.001}, {"momentum", 0.9}}, shape, batch);
    }
  }
  compare({{"type", "batch_norm"}}, {5, 4, 4}, 1);
  compare({{"type", "batch_norm"}}, {1}, 7);
  compare({{"type", "batch_norm"}}, {33}, 9);
}

TEST_P(LayerGrid, BatchNormInTests) {
  for (const Shape& shape : {Shape{7}, Shape{3, 5, 7}}) {
    const LayerSpec layer = testing::layer_on({{"type", "batch_norm"}, {"epsilon", 0.01}}, shape);
    auto data = testing::draw_layer_data(layer, 1, 31);
    data.phase = Phase::kTest;
    const auto got = testing::run_layer(*cpu_, layer, 1, data);
    EXPECT_TRUE(all_near(got.output, testing::run_layer(*reference_, layer, 1, data).output,
                         32 * testing::kFloatEpsilon));
    EXPECT_EQ(got.statistics, data.statistics) << "tests must not move them";
  }
}

// The mean may be far from zero compared with the deviation: the sums must not cancel.
TEST_P(LayerGrid, BatchNormOfLargeMeans) {
  const LayerSpec layer = testing::layer_on({{"type", "batch_norm"}}, {2, 9, 9});
  auto data = testing::draw_layer_data(layer, 3, 32);
  for (float& value : data.input) value += 1000.0f;
  const auto got = testing::run_layer(*cpu_, layer, 3, data);
  const auto wanted = testing::run_layer(*reference_, layer, 3, data);
  // The mean is rounded once, by half an epsilon of 1000 against a deviation of 0.6.
  EXPECT_TRUE(all_near(got.output, wanted.output, 1000 * testing::kFloatEpsilon));
  EXPECT_TRUE(all_near(got.statistics, wanted.statistics, 200 * testing::kFloatEpsilon));
}

TEST_P(LayerGrid, BatchNormLeavesFillingOut) {
  const LayerSpec layer = testing::layer_on({{"type", "batch_norm"}}, {3, 4, 4});
  auto data = testing::draw_layer_data(layer, 4, 33);
  data.valid_samples = 3;
  const auto got = testing::run_layer(*cpu_, layer, 4, data);
  const auto wanted = testing::run_layer(*reference_, layer, 4, data);
  EXPECT_TRUE(all_near(got.statistics, wanted.statistics, 32 * testing::kFloatEpsilon));
  EXPECT_TRUE(all_near(got.input_gradient, wanted.input_gradient, 64 * testing::kFloatEpsilon));
  for (std::size_t i = 3 * 48; i < 4 * 48; ++i) EXPECT_EQ(got.input_gradient[i], 0.0f);
}

TEST_P(LayerGrid, Concat) {
  for (const std::int64_t batch : {1, 5}) {
    for (const Shape& shape : {Shape{1}, Shape{31}, Shape{3, 5, 7}, Shape{8, 40, 41}}) {
      compare({{"type", "concat"}}, shape, batch);
    }
  }
}

TEST_P(LayerGrid, FullyConnected) {
  for (const std::int64_t batch : {1, 2, 33}) {
    for (const std::int64_t inputs : {1, 7, 64}) {
      for (const int outputs : {1, 10, 65}) {
        compare({{"type", "fully_connected"}, {"outputs", outputs}}, {inputs}, batch);
      }
    }
    compare({{"type", "fully_connected"}, {"outputs", 9}, {"bias", false}}, {3, 5, 4}, batch);
  }
}

TEST_P(LayerGrid, ElementByElement) {
  for (const std::int64_t batch : {1, 5}) {
    for (const Shape& shape : {Shape{1}, Shape{31}, Shape{3, 5, 7}, Shape{8, 40, 41}}) {
      compare({{"type", "relu"}}, shape, batch);
      compare({{"type", "add"}}, shape, batch);
      compare({{"type", "dropout"}, {"ratio", 0.3}}, shape, batch);
    }
  }
}

TEST_P(LayerGrid, Lrn) {
  for (const std::int64_t channels : {1, 3, 16, 19}) {
    for (const int local_size : {1, 3, 5}) {
      compare({{"type", "lrn"}, {"local_size", local_size}, {"alpha", 0.4}, {"k", 2}},
              {channels, 3, 5}, 2);
    }
  }
}

TEST_P(LayerGrid, Scores) {
  for (const std::int64_t batch : {1, 4, 7}) {
    for (const std::int64_t classes : {2, 10, 1001}) {
      compare({{"type", "softmax_cross_entropy"}}, {classes}, batch);
      compare({{"type", "softmax_cross_entropy"}, {"label_smoothing", 0.1}, {"loss_weight", 0.3}},
              {classes}, batch);
      compare({{"type", "accuracy"}}, {classes}, batch);
    }
  }
}

TEST_P(LayerGrid, FillingSamplesCountForNothing) {
  const LayerSpec layer = testing::layer_on({{"type", "softmax_cross_entropy"}}, {6});
  auto data = testing::draw_layer_data(layer, 4, 77);
  data.valid_samples = 3;
  const auto got = testing::run_layer(*cpu_, layer, 4, data);
  EXPECT_EQ(got.output[3], 0.0f);
  for (std::size_t i = 18; i < 24; ++i) EXPECT_EQ(got.input_gradient[i], 0.0f);
  EXPECT_TRUE(all_near(got.input_gradient,
                       testing::run_layer(*reference_, layer, 4, data).input_gradient,
                       16 * testing::kFloatEpsilon));
}

TEST_P(LayerGrid, LargeScoresDoNotOverflow) {
  const LayerSpec layer = testing::layer_on({{"type", "softmax_cross_entropy"}}, {3});
  auto data = testing::draw_layer_data(layer, 1, 5);
  data.input = {1000.0f, 999.0f, -1000.0f};
  data.labels = {2};
  const auto got = testing::run_layer(*cpu_, layer, 1, data);
  EXPECT_NEAR(got.output[0], 2000.0 + std::log1p(std::exp(-1.0)), 2000 * testing::kFloatEpsilon);
}

// A NaN must reach the loss, where the trainer looks for it.
TEST_P(LayerGrid, NanIsNotSwallowed) {
  const std::vector<json> layers = {{{"type", "relu"}},
                                    {{"type", "pooling"}, {"pool", "max"}, {"kernel", 3}},
                                    {{"type", "pooling"}, {"pool", "average"}, {"kernel", 3}},
                                    {{"type", "lrn"}},
                                    {{"type", "concat"}},
                                    {{"type", "convolution"}, {"outputs", 2}, {"kernel", 3}},
                                    {{"type", "fully_connected"}, {"outputs", 2}}};
  for (const json& layer_json : layers) {
    const LayerSpec layer = testing::layer_on(layer_json, {1, 3, 3});
    auto data = testing::draw_layer_data(layer, 1, 6);
    data.input[4] = std::numeric_limits<float>::quiet_NaN();
    data.phase = Phase::kTest;
    bool has_nan = false;
    for (const float value : testing::run_layer(*cpu_, layer, 1, data).output) {
      has_nan |= std::isnan(value);
    }
    EXPECT_TRUE(has_nan) << layer_json.dump();
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, LayerGrid, ::testing::Values(1, 2));

}  // namespace
}  // namespace poseidon
