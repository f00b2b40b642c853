// Jobs whose model a program declares: what their files may say.

#include <string>
#include <utility>

#include "common/base/text.h"
#include "common/job/declared_model.h"
#include "common/job/job.h"
#include "common/job/job_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::declared_job_test {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Json declared_example() {
  return Json::parse(R"({
    "name": "script",
    "model": {"name": "train.py", "declared": [{"name": "fc", "tensors": [{"shape": [10, 4]}]}]},
    "optimizer": {"type": "adamw", "learning_rate": 0.001}})");
}

Json native_example() {
  return Json::parse(R"({
    "name": "digits", "model": "lenet", "batch_size": 32, "iterations": 500,
    "data": {"train": {"format": "idx", "images": "images.gz", "labels": "labels.gz"}}})");
}

TEST(DeclaredJob, HasWhatItsProgramLeavesToUs) {
  const absl::StatusOr<JobSpec> job = parse_job(declared_example().dump());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(is_declared_model(job->model));
  EXPECT_EQ(job->batch_size, 1);
  EXPECT_EQ(job->iterations, kMaxIterations) << "until the program ends";
  const absl::StatusOr<JobSpec> again = parse_job(job_to_json(*job));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(job_to_json(*again), job_to_json(*job));
  EXPECT_THAT(job_warnings(*job), ElementsAre(HasSubstr("all iterations begin again")));
}

TEST(DeclaredJob, MayHaveTheRatesOfItsProgram) {
  Json json = declared_example();
  json["optimizer"]["rates"] = "program";
  const absl::StatusOr<JobSpec> job = parse_job(json.dump());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->optimizer.rates_by_program);
  const absl::StatusOr<JobSpec> again = parse_job(job_to_json(*job));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(job_to_json(*again), job_to_json(*job));
  for (const auto& [key, value] : {std::pair<const char*, Json>{"clip_norm", 1.0},
                                   {"schedule", {{"type", "cosine"}}},
                                   {"layers", Json::array({{{"match", "*"}}})}}) {
    Json both = json;
    both["optimizer"][key] = value;
    EXPECT_THAT(std::string(parse_job(both.dump()).status().message()),
                HasSubstr(str_cat("optimizer.", key, ": belongs to rates \"job\"")));
  }
  json["optimizer"] = {{"type", "lars"}, {"rates", "program"}};
  EXPECT_THAT(std::string(parse_job(json.dump()).status().message()), HasSubstr("type \"lars\""));
  Json native = native_example();
  native["optimizer"] = {{"rates", "program"}};
  EXPECT_THAT(std::string(parse_job(native.dump()).status().message()),
              HasSubstr("optimizer.rates: \"program\" is for a declared model"));
}

TEST(DeclaredJob, MayOnlyBeSummed) {
  Json json = declared_example();
  json["optimizer"] = {{"type", "sum"}};
  const absl::StatusOr<JobSpec> job = parse_job(json.dump());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->optimizer.type, OptimizerType::kSum);
  EXPECT_EQ(Json::parse(job_to_json(*job))["optimizer"], json["optimizer"]);
  EXPECT_THAT(std::string(check_servers_have_parameters(*job).message()),
              HasSubstr("the programs of job script step its parameters"));
  EXPECT_TRUE(check_servers_have_parameters(*parse_job(declared_example().dump())).ok());
  Json saved = json;
  saved["checkpoint"] = {{"every_iterations", 5}};
  EXPECT_THAT(std::string(parse_job(saved.dump()).status().message()),
              HasSubstr("checkpoint.every_iterations: with optimizer.type \"sum\""));
  json["optimizer"]["learning_rate"] = 0.1;
  EXPECT_THAT(std::string(parse_job(json.dump()).status().message()),
              HasSubstr("optimizer.learning_rate: belongs to types that step parameters"));
  Json native = native_example();
  native["optimizer"] = {{"type", "sum"}};
  EXPECT_THAT(std::string(parse_job(native.dump()).status().message()),
              HasSubstr("optimizer.type: \"sum\" is for programs that step"));
}

TEST(DeclaredJob, HasNothingThatItsProgramDoes) {
  for (const char* key : {"data", "init", "micro_batches", "precision", "test_every_iterations"}) {
    Json job = declared_example();
    job[key] = 1;
    EXPECT_THAT(std::string(parse_job(job.dump()).status().message()),
                StartsWith(str_cat("job file: ", key, ": belongs to a network that workers")));
  }
}

}  // namespace
}  // namespace poseidon::declared_job_test
