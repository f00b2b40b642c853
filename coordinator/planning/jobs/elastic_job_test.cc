#include "coordinator/planning/jobs/elastic_job.h"

#include "common/job/job.h"
#include "coordinator/planning/jobs/job_resolver.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::elastic_job_test {
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

// What the coordinator reports is the factor times the rate of the job file.
TEST(ElasticJob, TheRateOfEveryIterationFollowsWhateverTheSchedule) {
  for (const nlohmann::json& schedule :
       {nlohmann::json{{"type", "step"}, {"step_iterations", 100}},
        nlohmann::json{{"type", "multistep"}, {"milestones_iterations", {50, 200}}},
        nlohmann::json{{"type", "exponential"}, {"gamma", 0.99}},
        nlohmann::json{{"type", "inverse"}, {"gamma", 0.01}, {"power", 0.75}},
        nlohmann::json{{"type", "polynomial"}, {"power", 2}, {"warmup_iterations", 20}},
        nlohmann::json{{"type", "cosine"}, {"minimum", 0.02}, {"warmup_iterations", 20}}}) {
    nlohmann::json json = nlohmann::json::parse(job("per_worker"));
    json["optimizer"]["schedule"] = schedule;
    const auto as_begun = parse_job(json.dump());
    ASSERT_TRUE(as_begun.ok()) << as_begun.status();
    const auto more = job_with_workers(json.dump(), 2, 3);
    ASSERT_TRUE(more.ok()) << more.status();
    const auto spec = parse_job(more->job_json);
    ASSERT_TRUE(spec.ok()) << spec.status();
    for (const Iteration iteration : {0, 10, 120, 499, 600}) {
      EXPECT_DOUBLE_EQ(learning_rate_at(spec->optimizer, iteration),
                       1.5 * learning_rate_at(as_begun->optimizer, iteration))
          << schedule << " iteration " << iteration;
    }
  }
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

TEST(ElasticJobTest, AShareMustSuitBatchNormalisation) {
  nlohmann::json json = nlohmann::json::parse(job("global"));
  json["batch_size"] = 4;
  json["micro_batches"] = 1;
  json["model"] = nlohmann::json::parse(R"({
    "name": "small", "input": [1, 4, 4], "layers": [
      {"name": "fc1", "type": "fully_connected", "outputs": 5},
      {"name": "bn", "type": "batch_norm"},
      {"name": "fc2", "type": "fully_connected", "outputs": 2},
      {"name": "loss", "type": "softmax_cross_entropy"}]})");
  const absl::StatusOr<ResolvedJob> resolved = resolve_job(json.dump());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_TRUE(resolved->with_workers(1, 2).ok()) << "two samples each";
  const auto four = resolved->with_workers(1, 4);
  EXPECT_TRUE(absl::IsInvalidArgument(four.status())) << four.status();
  EXPECT_THAT(std::string(four.status().message()), HasSubstr("layer 'bn'"));

  json["batch_size"] = 1;
  json["membership"]["batch"] = "per_worker";
  const absl::StatusOr<ResolvedJob> kept = resolve_job(json.dump());
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_TRUE(kept->with_workers(3, 2).ok()) << "a share that stays as the job file has it";
}

TEST(ElasticJobTest, ADeclaredModelHasItsLayersAndAnyNumberOfWorkers) {
  const nlohmann::json json = nlohmann::json::parse(R"({
    "name": "script", "optimizer": {"type": "sgd", "learning_rate": 0.1},
    "model": {"name": "train.py", "declared": [
      {"name": "emb", "tensors": [{"shape": [6, 2]}]},
      {"name": "fc", "type": "linear",
       "tensors": [{"name": "weight", "shape": [3, 2]}, {"name": "bias", "shape": [3]}]}]}})");
  const absl::StatusOr<ResolvedJob> resolved = resolve_job(json.dump());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  ASSERT_EQ(resolved->layers.size(), 2U);
  EXPECT_EQ(resolved->layers[0].type, "plain");
  EXPECT_FALSE(resolved->layers[0].is_fully_connected);
  EXPECT_TRUE(resolved->layers[1].is_fully_connected);
  EXPECT_EQ(resolved->layers[1].shape, std::vector<std::int64_t>({3, 2}));
  EXPECT_EQ(resolved->layers[1].parameters, 9);
  EXPECT_FALSE(resolved->test_every) << "nothing that workers test";
  EXPECT_TRUE(resolved->with_workers(2, 5).ok());

  nlohmann::json bad = json;
  bad["model"]["declared"][1]["name"] = "emb";
  EXPECT_THAT(std::string(resolve_job(bad.dump()).status().message()),
              HasSubstr("model: model 'train.py': layer 'emb': another layer"));
}

}  // namespace
}  // namespace poseidon::elastic_job_test
