// What a coordinator that dies while it takes a job leaves to the next one.

#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/cluster/cluster_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::cluster_submit_test {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kRunFiles[] = {"model.safetensors", "metrics.jsonl", "job.json", "plan.json"};

class ClusterSubmitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("poseidon_cluster_submit_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    // A run that is done, and its coordinator gone.
    fs::create_directories(run());
    for (const char* name : kRunFiles) std::ofstream(run() / name) << R"({"iteration":0,"loss":1})";
    auto state = StateDirectory::open(folder_ / "state");
    ASSERT_TRUE(state.ok()) << state.status();
    v1::GetStatusResponse last = status_without_job();
    last.set_job_id("last-7");
    last.set_job("last");
    last.set_state("done");
    ASSERT_TRUE((*state)->store_outcome(*outcome_to_json(last)).ok());
  }
  void TearDown() override {
    cluster_.reset();
    fs::remove_all(folder_);
  }

  fs::path run() const { return folder_ / "run"; }
  using Open = decltype(ClusterDisk::open);

  void start(Open open = RunDirectory::open) {
    cluster_.reset();
    auto state = StateDirectory::open(folder_ / "state");
    ASSERT_TRUE(state.ok()) << state.status();
    ClusterDisk disk;
    disk.background = std::make_unique<TestBackground>(&tasks_);
    disk.open = std::move(open);
    cluster_ = std::make_unique<Cluster>(
        ClusterOptions{.run_root = folder_},
        [](const std::string&) -> absl::StatusOr<ResolvedJob> { return toy_job(); },
        *std::move(state), &clock_, std::move(disk));
    const absl::Status restored = cluster_->restore();
    ASSERT_TRUE(restored.ok()) << restored;
  }
  absl::Status submit() {
    v1::SubmitRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_job_json("{}");
    request.set_run_directory(run().string());
    return cluster_->submit(request).status();
  }
  /// What a process that is killed now would leave.
  void keep_disk() {
    fs::remove_all(folder_ / "kept");
    fs::create_directories(folder_ / "kept");
    for (const char* name : {"state", "run"}) {
      fs::copy(folder_ / name, folder_ / "kept" / name, fs::copy_options::recursive);
    }
  }
  void bring_back_disk() {
    cluster_.reset();
    for (const char* name : {"state", "run"}) {
      fs::remove_all(folder_ / name);
      fs::rename(folder_ / "kept" / name, folder_ / name);
    }
  }

  TestClock clock_;
  std::deque<std::function<void()>> tasks_;
  fs::path folder_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(ClusterSubmitTest, KilledAsItTakesAJobTheNextCoordinatorKnowsIt) {
  for (const bool opened : {false, true}) {
    start([&](const fs::path& path, RunDirectory::Begin begin,
              RunDirectory::Events events) -> absl::StatusOr<std::unique_ptr<RunFiles>> {
      if (!opened) keep_disk();
      auto directory = RunDirectory::open(path, begin, std::move(events));
      if (opened) keep_disk();
      return directory;
    });
    EXPECT_EQ(status_of(*cluster_).job_id(), "last-7");
    ASSERT_TRUE(submit().ok());
    bring_back_disk();
    start();
    const v1::GetStatusResponse status = status_of(*cluster_);
    EXPECT_EQ(status.job_id(), "toy-1");
    EXPECT_EQ(status.state(), "waiting");
    for (const char* name : kRunFiles) EXPECT_TRUE(fs::exists(run() / "earlier" / name)) << name;
    TearDown();
    SetUp();
  }
}

TEST_F(ClusterSubmitTest, KilledBeforeThatTheLastRunsFilesAreWhereTheyWere) {
  start();
  keep_disk();
  bring_back_disk();
  start();
  EXPECT_EQ(status_of(*cluster_).state(), "done");
  for (const char* name : kRunFiles) EXPECT_TRUE(fs::exists(run() / name)) << name;
}

TEST_F(ClusterSubmitTest, AJobWithoutADirectoryIsNoJob) {
  start([](const fs::path&, RunDirectory::Begin,
           const RunDirectory::Events&) -> absl::StatusOr<std::unique_ptr<RunFiles>> {
    return absl::PermissionDeniedError("not yours");
  });
  EXPECT_THAT(submit().ToString(), HasSubstr("not yours"));
  EXPECT_EQ(status_of(*cluster_).job_id(), "last-7");
  start();
  const v1::GetStatusResponse status = status_of(*cluster_);
  EXPECT_EQ(status.job_id(), "last-7");
  EXPECT_EQ(status.state(), "done");
}

}  // namespace
}  // namespace poseidon::cluster_submit_test
