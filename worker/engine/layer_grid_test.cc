// The CPU device against its twin: the grid and the special cases of layer_checks.h, and
// requirements that only concern devices with threads.

#include <memory>
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "tests/support/layer_checks.h"
#include "tests/support/layer_harness.h"
#include "tests/twins/reference_device/reference_device.h"
#include "worker/engine/cpu/cpu_device.h"

namespace poseidon::layer_grid_test {
namespace {

class LayerGrid : public ::testing::TestWithParam<std::tuple<testing::LayerCases, int>> {};

TEST_P(LayerGrid, AgreesWithTheReference) {
  const auto& [group, threads] = GetParam();
  const auto cpu = make_cpu_device(threads);
  const auto reference = make_reference_device();
  std::uint64_t seed = 1;
  for (const testing::LayerCase& one : group.cases) {
    testing::compare_layer(*cpu, *reference, one, seed++, {});
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, LayerGrid,
                         ::testing::Combine(::testing::ValuesIn(testing::layer_grid()),
                                            ::testing::Values(1, 2)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

class SpecialLayers : public ::testing::TestWithParam<int> {
 protected:
  const std::unique_ptr<Device> cpu_ = make_cpu_device(GetParam());
  const std::unique_ptr<Device> reference_ = make_reference_device();
};

TEST_P(SpecialLayers, BatchNormInTests) { testing::batch_norm_in_tests(*cpu_, *reference_, {}); }
TEST_P(SpecialLayers, BatchNormOfLargeMeans) {
  testing::batch_norm_of_large_means(*cpu_, *reference_, {});
}
TEST_P(SpecialLayers, BatchNormLeavesFillingOut) {
  testing::batch_norm_leaves_filling_out(*cpu_, *reference_, {});
}
TEST_P(SpecialLayers, OneValuePerChannelHasNoVariance) {
  testing::one_value_per_channel_has_no_variance(*cpu_);
  testing::one_value_per_channel_has_no_variance(*reference_);
}
TEST_P(SpecialLayers, FillingSamplesCountForNothing) {
  testing::filling_samples_count_for_nothing(*cpu_, *reference_, {});
}
TEST_P(SpecialLayers, LargeScoresDoNotOverflow) {
  testing::large_scores_do_not_overflow(*cpu_, {});
}
TEST_P(SpecialLayers, NanIsNotSwallowed) { testing::nan_is_not_swallowed(*cpu_); }

INSTANTIATE_TEST_SUITE_P(Threads, SpecialLayers, ::testing::Values(1, 2));

// Replicas on machines with different numbers of cores must not drift apart.
TEST(BatchNorm, SameBitsWhateverTheNumberOfThreads) {
  const LayerSpec layer = testing::layer_on({{"type", "batch_norm"}}, {5, 90, 91});
  const auto data = testing::draw_layer_data(layer, 7, 34);
  const auto one = testing::run_layer(*make_cpu_device(1), layer, 7, data);
  for (const int threads : {2, 3}) {
    const auto many = testing::run_layer(*make_cpu_device(threads), layer, 7, data);
    EXPECT_EQ(many.output, one.output) << threads;
    EXPECT_EQ(many.statistics, one.statistics) << threads;
    EXPECT_EQ(many.input_gradient, one.input_gradient) << threads;
    EXPECT_EQ(many.parameter_gradients, one.parameter_gradients) << threads;
  }
}

}  // namespace
}  // namespace poseidon::layer_grid_test
