#include "coordinator/elastic_job.h"

#include "common/job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

using ::testing::HasSubstr;

std::string job(const char* batch) {
  return nlohmann::json{
      {"name", "digits"},
      {"model", "lenet"},
      {"data", {{"train", {{"format", "idx"}, {"images", "i"}, {"labels", "l"}}}}},
      {"batch_size", 32},
      {"micro_batches", 2},
      {"iterations", 500},
      {"optimizer", {{"type", "sgd"}, {"learning_rate", 0.05}, {"momentum", 0.9}}},
      {"membership", {{"batch", batch}}}}
      .dump();
}

TEST(ElasticJob, StaysAsItIsWithAsManyWorkers) {
  const auto same = job_with_workers(job("global"), 4, 4);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->job_json, job("global"));
  EXPECT_EQ(same->batch_size, 32);
  EXPECT_EQ(same->learning_rate_factor, 1.0);
}

TEST(ElasticJob, PerWorkerTheRateFollowsTheBatchOfAll) {
  const auto fewer = job_with_workers(job("per_worker"), 4, 3);
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  EXPECT_EQ(fewer->batch_size, 32);
  EXPECT_EQ(fewer->learning_rate_factor, 0.75);
  const auto spec = parse_job(fewer->job_json);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_DOUBLE_EQ(spec->optimizer.learning_rate, 0.0375);
  EXPECT_EQ(spec->optimizer.momentum, 0.9);
  EXPECT_EQ(spec->batch_size, 32);
}

TEST(ElasticJob, GlobalTheBatchIsSharedAndTheRateStays) {
  const auto fewer = job_with_workers(job("global"), 4, 2);
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  EXPECT_EQ(fewer->batch_size, 64);
  EXPECT_EQ(fewer->learning_rate_factor, 1.0);
  EXPECT_EQ(parse_job(fewer->job_json)->batch_size, 64);
}

TEST(ElasticJob, WhatDoesNotDivideIsRefusedByName) {
  const auto three = job_with_workers(job("global"), 4, 3);
  EXPECT_THAT(std::string(three.status().message()),
              HasSubstr("the batch of all workers, 128 (membership.batch is \"global\"), is not "
                        "divisible by 3 workers"));
  EXPECT_FALSE(job_with_workers(job("global"), 1, 32).ok()) << "nor by their micro-batches";
}

}  // namespace
}  // namespace poseidon
