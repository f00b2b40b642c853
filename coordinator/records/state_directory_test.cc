#include "coordinator/records/state_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::state_directory_test {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::stringstream contents;
  contents << std::ifstream(path, std::ios::binary).rdbuf();
  return contents.str();
}

class StateDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("poseidon_state_directory_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(StateDirectoryTest, EpochsGrowAcrossRestarts) {
  for (std::uint64_t expected = 1; expected <= 3; ++expected) {
    auto state = StateDirectory::open(folder_);
    ASSERT_TRUE(state.ok());
    EXPECT_EQ(*(*state)->next_epoch(), expected);
  }
  auto first = StateDirectory::open(folder_);
  EXPECT_TRUE((*first)->skip_epochs(2));
  EXPECT_EQ(*(*first)->next_epoch(), 4u) << "they are over";
  EXPECT_TRUE((*first)->skip_epochs(40));
  EXPECT_TRUE((*first)->skip_epochs(7));
  const std::uint64_t half = std::uint64_t{1} << 23;
  EXPECT_FALSE((*first)->skip_epochs(half + 1)) << "somebody wants to use them up";
  EXPECT_EQ(*(*first)->next_epoch(), 41u);
  first->reset();
  first = StateDirectory::open(folder_);
  EXPECT_EQ(*(*first)->next_epoch(), 42u);
  EXPECT_TRUE((*first)->skip_epochs(half));
  EXPECT_EQ(*(*first)->next_epoch(), half + 1);
  EXPECT_TRUE((*first)->skip_epochs(half + 1)) << "its own";
  first->reset();
  first = StateDirectory::open(folder_);
  EXPECT_TRUE((*first)->skip_epochs(half + 1));
  EXPECT_FALSE((*first)->skip_epochs(half + 2));
  EXPECT_EQ(StateDirectory::open(folder_).status().code(), absl::StatusCode::kAlreadyExists);
  std::ofstream(folder_ / "epoch") << "nonsense";
  EXPECT_EQ((*first)->next_epoch().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(StateDirectoryTest, APipeInPlaceOfTheEpochHoldsNobodyUp) {
  fs::create_directories(folder_);
  ASSERT_EQ(::mkfifo((folder_ / "epoch").c_str(), 0600), 0);
  const auto state = StateDirectory::open(folder_);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_FALSE((*state)->is_new());
  EXPECT_THAT((*state)->next_epoch().status().message(), HasSubstr("epoch: is a pipe"));
}

TEST_F(StateDirectoryTest, ItsOwnFolderIsNotTheFaultOfWhoSubmits) {
  const auto state = StateDirectory::open(folder_);
  ASSERT_TRUE(state.ok()) << state.status();
  fs::remove_all(folder_);
  for (const absl::Status& status : {(*state)->next_epoch().status(), (*state)->store_job("{}")}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("--state-dir"));
  }
}

TEST_F(StateDirectoryTest, ANameThatWasForgottenIsAnotherOne) {
  auto state = StateDirectory::open(folder_);
  ASSERT_TRUE(state.ok()) << state.status();
  const std::string identity = (*state)->identity();
  EXPECT_EQ((*state)->last_given(), 0u);
  ASSERT_TRUE((*state)->next_epoch().ok());
  EXPECT_EQ((*state)->last_given(), 1u);
  EXPECT_TRUE((*state)->forget_identity().ok());
  EXPECT_TRUE((*state)->forget_identity().ok()) << "it is gone already";
  EXPECT_EQ((*state)->identity(), identity) << "of this process";
  state->reset();
  state = StateDirectory::open(folder_);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_NE((*state)->identity(), identity);
  EXPECT_EQ((*state)->last_given(), 1u);
}

TEST_F(StateDirectoryTest, TheStateKeepsTheJob) {
  auto state = StateDirectory::open(folder_);
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(*(*state)->load_job(), std::nullopt);
  ASSERT_TRUE((*state)->store_job("one").ok());
  ASSERT_TRUE((*state)->store_job("two").ok());
  EXPECT_EQ(*(*state)->load_job(), "two");
  ASSERT_TRUE((*state)->drop_job().ok());
  ASSERT_TRUE((*state)->drop_job().ok());
  EXPECT_EQ(*(*state)->load_job(), std::nullopt);
  ASSERT_TRUE((*state)->store_job("three").ok());
  (*state)->set_job_aside();
  EXPECT_EQ(*(*state)->load_job(), std::nullopt);
  EXPECT_EQ(read_file(folder_ / "job.json.broken"), "three");
}

TEST_F(StateDirectoryTest, PlansOfEarlierJobsStayUntilThereAreTooMany) {
  auto state = StateDirectory::open(folder_);
  ASSERT_TRUE(state.ok());
  EXPECT_TRUE(absl::IsNotFound((*state)->load_plans("0a").status()));
  ASSERT_TRUE((*state)->store_plans("0a", "one").ok());
  ASSERT_TRUE((*state)->store_plans("0a", "two").ok());
  EXPECT_EQ(*(*state)->load_plans("0a"), "two");
  const fs::path half = folder_ / "plans" / "0a.json.tmp-1-0";  // of a coordinator that was killed
  std::ofstream(half) << "tw";
  ASSERT_TRUE((*state)->store_plans("0a", "three").ok());
  EXPECT_FALSE(fs::exists(half));

  const fs::file_time_type long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (std::size_t i = 0; i < StateDirectory::kMostPlanFiles; ++i) {
    const std::string key = "b" + std::to_string(i);
    ASSERT_TRUE((*state)->store_plans(key, "x").ok());
    fs::last_write_time((*state)->plans_file(key), long_ago + std::chrono::seconds(i));
  }
  EXPECT_TRUE((*state)->load_plans("0a").ok()) << "it was written after the others";
  EXPECT_TRUE(absl::IsNotFound((*state)->load_plans("b0").status()));
  ASSERT_TRUE((*state)->store_plans("b1", "y").ok());
  EXPECT_TRUE((*state)->load_plans("b1").ok()) << "which makes no room";
  EXPECT_TRUE((*state)->load_plans("b2").ok());
}

TEST_F(StateDirectoryTest, PlansThatCannotBeKeptAreAnError) {
  auto state = StateDirectory::open(folder_);
  ASSERT_TRUE(state.ok());
  std::ofstream(folder_ / "plans") << "a file";
  const absl::Status kept = (*state)->store_plans("0a", "one");
  EXPECT_THAT(std::string(kept.message()), HasSubstr("plans"));
  EXPECT_FALSE((*state)->load_plans("0a").ok());
}

TEST_F(StateDirectoryTest, TheStateIsOneCoordinatorsAndKeepsNothingHalfWritten) {
  auto state = StateDirectory::open(folder_);
  ASSERT_TRUE(state.ok());
  const absl::Status second = StateDirectory::open(folder_).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.message()), HasSubstr("choose another --state-dir"));
  ASSERT_TRUE((*state)->store_job("one").ok());
  *state = nullptr;
  const fs::path half = folder_ / "job.json.tmp-1-0";  // of a coordinator that was killed
  std::ofstream(half) << "tw";
  ASSERT_TRUE(StateDirectory::open(folder_).ok());
  EXPECT_FALSE(fs::exists(half));
  EXPECT_EQ(read_file(folder_ / "job.json"), "one");
}

}  // namespace
}  // namespace poseidon::state_directory_test
