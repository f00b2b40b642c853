#include "common/job/job_change.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::job_change_test {
namespace {

using ::testing::HasSubstr;

nlohmann::json job() {
  return {{"name", "digits"},
          {"model", "lenet"},
          {"data", {{"train", {{"format", "idx"}, {"images", "i"}, {"labels", "l"}}}}},
          {"batch_size", 32},
          {"iterations", 500},
          {"optimizer", {{"type", "sgd"}, {"learning_rate", 0.05}, {"momentum", 0.9}}}};
}

absl::Status change(const char* pointer, const nlohmann::json& value) {
  nlohmann::json to = job();
  to[nlohmann::json::json_pointer(pointer)] = value;
  return check_job_change(job().dump(), to.dump());
}

TEST(JobChange, WhatALongerRunNeedsMayChange) {
  EXPECT_TRUE(change("/iterations", 900).ok());
  EXPECT_TRUE(change("/batch_size", 16).ok());
  EXPECT_TRUE(change("/test_every_iterations", 10).ok());
  EXPECT_TRUE(change("/data/train/images", "others").ok());
  EXPECT_TRUE(change("/data/seed", 7).ok());
  EXPECT_TRUE(change("/optimizer/learning_rate", 0.01).ok());
  EXPECT_TRUE(change("/optimizer/schedule", {{"type", "step"}, {"step_iterations", 100}}).ok());
  EXPECT_TRUE(change("/checkpoint/every_iterations", 50).ok());
  EXPECT_TRUE(change("/membership/min_workers", 2).ok());
}

TEST(JobChange, AllElseIsRefusedByName) {
  const auto refusal = [](const char* pointer, const nlohmann::json& value) {
    const absl::Status status = change(pointer, value);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << pointer;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal("/optimizer/type", "adam"), HasSubstr("optimizer."));
  EXPECT_THAT(refusal("/optimizer/momentum", 0.5),
              HasSubstr("optimizer.momentum was 0.9 and is 0.5, which may not change"));
  EXPECT_THAT(refusal("/model", "cifar10_quick"),
              HasSubstr("model was \"lenet\" and is \"cifar10_quick\""));
  EXPECT_THAT(refusal("/name", "others"), HasSubstr("name was \"digits\" and is \"others\""));
  EXPECT_THAT(refusal("/init", {{"seed", 2}}), HasSubstr("init"));
  EXPECT_THAT(refusal("/sync", {{"scheme", "ps"}}), HasSubstr("sync"));
  EXPECT_THAT(refusal("/iterations", "many"), HasSubstr("iterations")) << "no job at all";
}

TEST(JobChange, ADefaultIsEqualToItsAbsence) {
  EXPECT_TRUE(change("/init", {{"seed", 1}}).ok());
  EXPECT_TRUE(change("/precision", "fp32").ok());
  EXPECT_TRUE(check_job_change("the same text", "the same text").ok());
}

}  // namespace
}  // namespace poseidon::job_change_test
