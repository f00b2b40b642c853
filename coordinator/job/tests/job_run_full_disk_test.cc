// A job that recovers while the coordinator's state directory has no room: for what is stored, as
// for the number of the next epoch, it waits.

#include "coordinator/job/tests/job_run_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::job_run_full_disk_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Status kFull = absl::ResourceExhaustedError("disk full");

/// A worker is lost after four iterations, and the others are asked to halt.
class FullDiskTest : public RecoveryTest {
 protected:
  void SetUp() override {
    RecoveryTest::SetUp();
    train(0, 4);
    lose(102, 4);
  }
  void store(std::uint64_t server) {
    actions_ = job_->on_checkpoint_report(
        NodeId(server), job_->epoch(), {.iteration = 4, .stored = true, .bytes = 10}, 1, at(4.2));
  }
  void written(const absl::Status& status, double now) {
    actions_ = job_->on_manifest_written(snapshot_id(Epoch(7), 4), status, at(now));
  }
  std::size_t writes_at(double now) {
    actions_ = job_->tick(at(now));
    return only<WriteManifest>(actions_).size();
  }
};

/// A periodic checkpoint, or one of which servers tell a coordinator that was started again.
TEST_F(FullDiskTest, WhatCannotBeWrittenDownWhileOthersHaltIsTriedAgain) {
  for (const std::uint64_t id : {1, 2}) {
    halt(id, 4, 4, 4.1);
    store(id);
  }
  ASSERT_EQ(job_->state(), JobState::kHalting);
  written(kFull, 4.3);
  halt(101, 4, 4, 5);
  EXPECT_EQ(job_->state(), JobState::kSaving);
  EXPECT_THAT(only<SendSave>(actions_), IsEmpty()) << "it is stored";
  EXPECT_EQ(writes_at(7.4), 1u);
  written(absl::OkStatus(), 7.5);
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  join(node(103), 8);
  actions_ = job_->on_epoch(9, at(8));
  ASSERT_NE(job_->view().source.manifest(), nullptr);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 4);
}

/// What all hold in memory is stored, and its manifest finds no room.
class StoredTest : public FullDiskTest {
 protected:
  void SetUp() override {
    FullDiskTest::SetUp();
    for (const std::uint64_t id : {101, 1, 2}) halt(id, 4, 4, 4.1);
    for (const std::uint64_t id : {1, 2}) store(id);
    ASSERT_THAT(only<WriteManifest>(actions_), SizeIs(1));
    written(kFull, 4.3);
  }
  static constexpr double kPatience = 30 + 600;  // replace_timeout and recovery_timeout
};

TEST_F(StoredTest, CostsNoIterationOnceThereIsRoom) {
  EXPECT_EQ(job_->state(), JobState::kSaving);
  EXPECT_THAT(only<SendStop>(actions_), IsEmpty()) << "they hold what is not saved otherwise";
  ASSERT_THAT(only<LogLine>(actions_), SizeIs(1));
  EXPECT_THAT(only<LogLine>(actions_)[0].text, HasSubstr("disk full; tries again"));
  EXPECT_THAT(job_->progress(at(5)).message, HasSubstr("iteration 4 is saved: disk full"));
  EXPECT_EQ(writes_at(7), 0u);
  EXPECT_EQ(writes_at(7.4), 1u);
  EXPECT_EQ(writes_at(20), 0u) << "one at a time";
  written(kFull, 20);
  EXPECT_THAT(only<LogLine>(actions_), IsEmpty()) << "said once";

  lose(2, 21);  // what it has stored is on its disk
  lose(101, 22);
  EXPECT_EQ(job_->state(), JobState::kSaving);
  EXPECT_EQ(writes_at(400), 1u) << "longer than saving may take otherwise";
  written(absl::OkStatus(), 400);
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  for (const NodeInfo& n : {node(3, 2), node(103), node(104)}) join(n, 401);
  actions_ = job_->on_epoch(9, at(401));
  ASSERT_NE(job_->view().source.manifest(), nullptr);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 4);
  EXPECT_EQ(job_->counts().checkpoints_failed, 0u);
}

TEST_F(StoredTest, IsWaitedForAsLongAsForNodes) {
  EXPECT_EQ(writes_at(4 + kPatience), 1u);
  written(kFull, 5 + kPatience);
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  EXPECT_THAT(only<ForgetParts>(actions_), SizeIs(1));
  EXPECT_EQ(job_->counts().checkpoints_failed, 1u);
}

TEST_F(StoredTest, IsGivenUpBetweenTwoAttempts) {
  actions_ = job_->tick(at(5 + kPatience));
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  EXPECT_THAT(only<ForgetParts>(actions_), SizeIs(1));
}

TEST_F(StoredTest, WhatGetsThereAfterAllIsGoneOnFrom) {
  EXPECT_EQ(writes_at(8), 1u);
  actions_ = job_->tick(at(5 + kPatience));  // the disk has said nothing since
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  EXPECT_THAT(only<ForgetParts>(actions_), IsEmpty());
  written(absl::OkStatus(), 6 + kPatience);
  join(node(103), 7 + kPatience);
  actions_ = job_->on_epoch(9, at(7 + kPatience));
  ASSERT_NE(job_->view().source.manifest(), nullptr);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 4);
}

TEST_F(StoredTest, AJobThatIsStoppedWaitsNoLongerThanItMay) {
  actions_ = job_->stop("an operator ended the job", std::chrono::seconds(20), at(5));
  EXPECT_EQ(job_->state(), JobState::kSaving);
  EXPECT_EQ(writes_at(8), 1u);
  written(kFull, 9);
  job_->tick(at(9.2));
  EXPECT_THAT(job_->progress(at(10)).message,
              HasSubstr("it ends when what it has trained is saved"));
  EXPECT_THAT(job_->progress(at(10)).message, HasSubstr("disk full"));
  job_->tick(at(25.1));
  EXPECT_EQ(job_->state(), JobState::kStopped);
  EXPECT_TRUE(job_->view().ending.ended_unsaved());
  EXPECT_THAT(job_->progress(at(26)).message, HasSubstr("7-4 is not written down: disk full"));
}

TEST_F(StoredTest, WhatIsBeingWrittenIsNoLessSafe) {
  EXPECT_EQ(writes_at(8), 1u);
  actions_ = job_->on_failed(NodeId(101), job_->epoch(), "out of memory", FailureKind::kJob, at(9));
  lose(101, 10);
  EXPECT_EQ(job_->state(), JobState::kSaving);
  written(absl::OkStatus(), 11);
  join(node(103), 12);
  join(node(104), 12);
  actions_ = job_->on_epoch(9, at(12));
  ASSERT_NE(job_->view().source.manifest(), nullptr);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 4);
}

}  // namespace
}  // namespace poseidon::job_run_full_disk_test
