#include "coordinator/planning/tensor_rules.h"

#include <string>

#include "gmock/gmock.h"

namespace poseidon::tensor_rules_test {
namespace {

using ::testing::HasSubstr;

TEST(Glob, MatchesTheWholeText) {
  EXPECT_TRUE(matches_glob("", ""));
  EXPECT_FALSE(matches_glob("", "a"));
  EXPECT_TRUE(matches_glob("conv1.weight", "conv1.weight"));
  EXPECT_FALSE(matches_glob("conv1.weight", "conv1.weights"));
  EXPECT_TRUE(matches_glob("*.bias", "fc6.bias"));
  EXPECT_FALSE(matches_glob("*.bias", "fc6.biases"));
  EXPECT_TRUE(matches_glob("*", ""));
  EXPECT_TRUE(matches_glob("**", "abc"));
  EXPECT_TRUE(matches_glob("fc?.*", "fc6.weight"));
  EXPECT_FALSE(matches_glob("fc?.*", "fc10.weight"));
  EXPECT_TRUE(matches_glob("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(matches_glob("a*b*c", "aXbYbZ"));
  EXPECT_FALSE(matches_glob("?", ""));
  EXPECT_TRUE(matches_glob("*a*a*a*b", std::string(40, 'a') + "b"));
  EXPECT_FALSE(matches_glob("*a*a*a*b", std::string(5000, 'a'))) << "and not after ages";
}

std::vector<PlannerLayer> network() {
  std::vector<PlannerLayer> layers(2);
  layers[0].name = "conv1";
  layers[0].tensors = {{"weight", 10, {}}, {"bias", 2, {}}};
  layers[1].name = "fc6";
  layers[1].tensors = {{"weight", 30, {}}, {"bias", 3, {}}};
  return layers;
}

TEST(TensorRules, TheFirstThatMatchesCounts) {
  std::vector<PlannerLayer> layers = network();
  const absl::Status status = apply_tensor_rules(
      {{"fc6.bias", {3.0, 1.0}}, {"*.bias", {2.0, 0.0}}, {"conv1.*", {0.0, 1.0}}}, layers);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(layers[0].tensors[0].multipliers, (StepMultipliers{0.0, 1.0}));
  EXPECT_EQ(layers[0].tensors[1].multipliers, (StepMultipliers{2.0, 0.0}));
  EXPECT_EQ(layers[1].tensors[0].multipliers, StepMultipliers{}) << "no rule";
  EXPECT_EQ(layers[1].tensors[1].multipliers, (StepMultipliers{3.0, 1.0}));
}

TEST(TensorRules, WhatMatchesNothingIsRefusedWithTheNearestName) {
  std::vector<PlannerLayer> layers = network();
  const absl::Status status = apply_tensor_rules({{"*.bias", {}}, {"fc6.wieght", {}}}, layers);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("optimizer.layers[1].match"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("did you mean \"fc6.weight\"?"));
  EXPECT_TRUE(apply_tensor_rules({{"*", {}}, {"fc6.bias", {}}}, layers).ok()) << "only never used";
}

}  // namespace
}  // namespace poseidon::tensor_rules_test
