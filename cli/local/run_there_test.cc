#include "cli/local/run_there.h"

#include <fstream>
#include <memory>

#include "common/files/file_io.h"
#include "coordinator/records/earlier_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::run_there_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = RunThere::Kind;

std::string job(std::int64_t iterations, double momentum = 0.9) {
  return nlohmann::json{
      {"name", "digits"},
      {"model", "lenet"},
      {"data", {{"train", {{"format", "idx"}, {"images", "i"}, {"labels", "l"}}}}},
      {"batch_size", 32},
      {"iterations", iterations},
      {"optimizer", {{"type", "sgd"}, {"learning_rate", 0.05}, {"momentum", momentum}}}}
      .dump();
}

CheckpointManifest checkpoint(Iteration iteration) {
  CheckpointManifest manifest;
  manifest.snapshot = snapshot_id(Epoch(1), iteration);
  manifest.job_json = job(100);
  return manifest;
}

RunThere unfinished() {
  return {.kind = Kind::kUnfinished,
          .folder = "/runs/r",
          .checkpoints = {checkpoint(20), checkpoint(40)}};
}

TEST(ChooseStart, GoesOnFromTheNewestCheckpoint) {
  const auto start = choose_start(unfinished(), {.job_json = job(100), .iterations = 100});
  ASSERT_TRUE(start.ok()) << start.status();
  ASSERT_TRUE(start->from);
  EXPECT_EQ(start->from->iteration(), 40);
  EXPECT_FALSE(start->has_other_job);
  EXPECT_FALSE(start->sets_aside);
}

TEST(ChooseStart, AJobThatHasChangedTakesItsPlace) {
  const auto start = choose_start(unfinished(), {.job_json = job(30), .iterations = 30});
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->from->iteration(), 20) << "the other one is behind its end";
  EXPECT_TRUE(start->has_other_job);
}

TEST(ChooseStart, AnotherJobIsRefusedWithTheFieldAndTheRemedy) {
  const auto other = choose_start(unfinished(), {.job_json = job(100, 0.5), .iterations = 100});
  EXPECT_TRUE(absl::IsInvalidArgument(other.status()));
  EXPECT_THAT(std::string(other.status().message()),
              AllOf(HasSubstr("/runs/r holds an unfinished run of another job: optimizer.momentum "
                              "was 0.9 and is 0.5"),
                    HasSubstr("--fresh begins anew and moves the files there to /runs/r/earlier")));
  const auto done = choose_start(unfinished(), {.job_json = job(20), .iterations = 20});
  EXPECT_THAT(std::string(done.status().message()), HasSubstr("iterations is 20, but the run in"));
}

TEST(ChooseStart, BeginsAnewAndKeepsWhatIsThere) {
  RunThere there = unfinished();
  auto start = choose_start(there, {.job_json = job(9), .iterations = 9, .fresh = true});
  ASSERT_TRUE(start.ok());
  EXPECT_TRUE(start->sets_aside && !start->from) << "wanted";
  there.checkpoints.clear();
  start = choose_start(there, {.job_json = job(9), .iterations = 9});
  EXPECT_TRUE(start->sets_aside && !start->from) << "no checkpoint";
  there = unfinished();
  there.kind = Kind::kFinished;
  start = choose_start(there, {.job_json = job(100), .iterations = 100});
  EXPECT_TRUE(start->sets_aside && !start->from) << "finished";
  start = choose_start({}, {.job_json = job(9), .iterations = 9});
  EXPECT_FALSE(start->sets_aside || start->from) << "nothing there";
}

class RunFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(run_);
    fs::create_directories(run_ / "cluster/server-0");
    fs::create_directories(run_ / "logs");
    auto state = StateDirectory::open(run_ / "cluster/coordinator");
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
  }
  void TearDown() override { fs::remove_all(run_); }
  void put(const std::string& name, const std::string& text) { std::ofstream(run_ / name) << text; }
  Kind kind() { return look_for_run(run_, *state_).kind; }

  const fs::path run_ = fs::path(::testing::TempDir()) / "run_there";
  std::unique_ptr<StateDirectory> state_;
};

TEST_F(RunFolder, TellsHowItsRunEnded) {
  EXPECT_EQ(kind(), Kind::kNone);
  put("metrics.jsonl", "");
  EXPECT_EQ(kind(), Kind::kNone) << "nothing was trained";
  put("metrics.jsonl", "a line\n");
  EXPECT_EQ(kind(), Kind::kUnfinished);
  put("model.safetensors", "a model");
  EXPECT_EQ(kind(), Kind::kFinished);
  put("stopped.json", "{}");
  EXPECT_EQ(kind(), Kind::kUnfinished) << "its model is a checkpoint's";
  fs::remove(run_ / "stopped.json");
  ASSERT_TRUE(state_->store_outcome(R"({"state": "failed"})").ok());
  EXPECT_EQ(kind(), Kind::kUnfinished);
  ASSERT_TRUE(state_->store_outcome(R"({"state": "done"})").ok());
  EXPECT_EQ(kind(), Kind::kFinished);
  ASSERT_TRUE(state_->store_job("it was killed").ok());
  EXPECT_EQ(kind(), Kind::kUnfinished);
}

TEST_F(RunFolder, GoesAsideWholeAndTheNextOneBesideIt) {
  state_.reset();
  for (const char* earlier : {"earlier", "earlier-2"}) {
    for (const char* name : {"metrics.jsonl", "model.safetensors", "job.json", "stopped.json"}) {
      put(name, earlier);
    }
    fs::create_directories(run_ / "cluster/coordinator");
    put("cluster/coordinator/epoch", earlier);
    put("cluster/lock", "held");
    put("logs/worker-0.log", earlier);
    const auto aside = set_run_aside(run_);
    ASSERT_TRUE(aside.ok()) << aside.status();
    EXPECT_EQ(*aside, run_ / earlier);
    for (const char* name : {"metrics.jsonl", "model.safetensors", "job.json", "stopped.json",
                             "cluster/coordinator/epoch", "logs/worker-0.log"}) {
      EXPECT_EQ(*read_file(*aside / name, 99), earlier) << name;
      EXPECT_FALSE(fs::exists(run_ / name)) << name;
    }
    EXPECT_TRUE(fs::exists(run_ / "cluster/lock")) << "it is held";
    EXPECT_TRUE(fs::exists(run_ / "logs"));
  }
}

}  // namespace
}  // namespace poseidon::run_there_test
