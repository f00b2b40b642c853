#include "coordinator/planning/calibrate.h"

#include "coordinator/planning/test_networks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::calibrate_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kGbit = 1e9 / 8;

TEST(AssumeCalibration, SplitsByMultiplyAddsBackwardTwiceForward) {
  const std::vector<PlannerLayer> layers = {convolution("c", 8, 4, 3, 100),
                                            fully_connected("f", 10, 720)};
  const Calibration calibration =
      assume_calibration(layers, 16, 3, 2, {.device_ops_per_s = 1e9, .bandwidth_bytes_per_s = 5e8});
  // 28800 and 7200 multiply-adds, 16 samples, two operations each.
  EXPECT_DOUBLE_EQ(calibration.layers[0].forward_s, 2 * 28800 * 16 / 1e9);
  EXPECT_DOUBLE_EQ(calibration.layers[0].backward_s, 4 * 28800 * 16 / 1e9);
  EXPECT_DOUBLE_EQ(calibration.layers[1].forward_s, 2 * 7200 * 16 / 1e9);
  EXPECT_EQ(calibration.workers.size(), 3u);
  EXPECT_EQ(calibration.servers.size(), 2u);
  EXPECT_EQ(calibration.servers[1].receive_bytes_per_s, 5e8);
  EXPECT_TRUE(validate(calibration, "x").ok());
}

TEST(AssumeCalibration, ImagesPerSecondAreTheWholeIteration) {
  const Calibration calibration = assume_calibration(vgg19(1000), 32, 1, 1, {.images_per_s = 35.5});
  double sum_s = 0.0;
  for (const LayerTimes& layer : calibration.layers) sum_s += layer.forward_s + layer.backward_s;
  EXPECT_NEAR(sum_s, 32 / 35.5, 1e-9);
}

TEST(AssumeCalibration, WhoTrainsSlowlyRebuildsSlowly) {
  const std::vector<PlannerLayer> layers = {convolution("c", 8, 4, 3, 100),
                                            fully_connected("f", 10, 720)};
  const auto products = [&](const AssumedMachines& machines) {
    return assume_calibration(layers, 16, 1, 1, machines).device_ops_per_s;
  };
  // Three passes of 36000 multiply-adds, two operations each.
  EXPECT_DOUBLE_EQ(products({.images_per_s = 50}), 3 * 2 * 36000 * 50.0);
  EXPECT_EQ(products({.device_ops_per_s = 1e12, .images_per_s = 50}), 1e12);
  EXPECT_EQ(products({}), kDefaultDeviceOpsPerS);
}

/// VGG19-22K at 10 GbE on 16 nodes: fc6 and fc7 hide behind 0.9 s of convolutions.
PlannerInput vgg() {
  return cluster_input(
      vgg19(21841), 32, 16,
      {.device_ops_per_s = 6e12, .images_per_s = 34.6, .bandwidth_bytes_per_s = 16 * kGbit});
}

std::vector<LayerTimes> times(const PlannerInput& input, double factor) {
  std::vector<LayerTimes> times = input.calibration->layers;
  for (LayerTimes& layer : times) {
    layer.forward_s *= factor;
    layer.backward_s *= factor;
  }
  return times;
}

/// Decides so often with the same measurement.
ReplanDecision after(int count, const PlannerInput& input, const Plan& plan, double factor,
                     ReplanState state = {}) {
  ReplanDecision decision{.state = state};
  for (int i = 0; i < count; ++i) {
    auto next = consider_replan(input, plan, times(input, factor), decision.state);
    EXPECT_TRUE(next.ok()) << next.status();
    decision = *std::move(next);
  }
  return decision;
}

TEST(Replan, FarForLongAndWorthItMakesANewPlan) {
  const PlannerInput input = vgg();
  const Plan plan = *make_plan(input);
  // Compute takes half as long: fc6 no longer hides.
  EXPECT_FALSE(after(19, input, plan, 0.5).plan.has_value());
  const ReplanDecision decision = after(20, input, plan, 0.5);
  ASSERT_TRUE(decision.plan.has_value());
  EXPECT_NEAR(decision.drift, 0.5, 1e-9);
  EXPECT_EQ(plan.layers[16].scheme, Scheme::kPs);
  EXPECT_EQ(decision.plan->layers[16].scheme, Scheme::kSfb);
  EXPECT_TRUE(decision.plan->calibration->measured);
  EXPECT_THAT(decision.reason, HasSubstr("planned anew"));
  EXPECT_EQ(decision.state.far_for, 0);
}

TEST(Replan, NearIsForgottenAndInBetweenIsNot) {
  const PlannerInput input = vgg();
  const Plan plan = *make_plan(input);
  const ReplanState far = after(10, input, plan, 0.5).state;
  EXPECT_EQ(far.far_for, 10);
  EXPECT_EQ(after(3, input, plan, 0.85, far).state.far_for, 10) << "neither near nor far";
  EXPECT_EQ(after(1, input, plan, 0.95, far).state.far_for, 0);
  EXPECT_THAT(after(100, input, plan, 1.05).reason, IsEmpty());
}

TEST(Replan, AGainTooSmallIsLeftAloneWithAWord) {
  const PlannerInput input = vgg();
  const Plan plan = *make_plan(input);
  // Twice the compute hides fc8 too, which saves 15 of 1850 ms.
  const ReplanDecision decision = after(20, input, plan, 2.0);
  EXPECT_FALSE(decision.plan.has_value());
  EXPECT_THAT(decision.reason, HasSubstr("not worth an interruption"));
  EXPECT_EQ(decision.state.far_for, 0) << "and it is not asked again at once";
}

TEST(Replan, WhatDoesNotFitIsRefused) {
  PlannerInput input = vgg();
  const Plan plan = *make_plan(input);
  std::vector<LayerTimes> measured = times(input, 1.0);
  measured.pop_back();
  EXPECT_FALSE(consider_replan(input, plan, measured, {}).ok());
  measured = times(input, 1.0);
  measured[0].forward_s = -1.0;
  EXPECT_FALSE(consider_replan(input, plan, measured, {}).ok());
  input.calibration.reset();
  EXPECT_THAT(std::string(consider_replan(input, plan, times(vgg(), 1.0), {}).status().message()),
              HasSubstr("calibrate first"));
}

}  // namespace
}  // namespace poseidon::calibrate_test
