#include "coordinator/job/reports/standstill.h"

#include "coordinator/job/tests/job_run_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::standstill_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr StandstillOptions kOptions{.least = at(30), .iterations = 10, .least_computing = at(300)};
const std::vector<NodeId> kWorkers = {NodeId(101), NodeId(102)};

std::vector<AwaitedData> chunk_of_server(std::uint32_t server, std::uint32_t chunk = 0) {
  return {{.layer = LayerIndex(0),
           .chunk = ChunkId(chunk),
           .iteration = 5,
           .ranks = {},
           .server = ServerIndex(server)}};
}

/// Both workers wait from `now` on.
Standstill all_waiting(double now) {
  Standstill standstill(kOptions);
  standstill.begin_epoch(at(0));
  standstill.on_awaited(NodeId(101), chunk_of_server(0), at(now));
  standstill.on_awaited(NodeId(102), chunk_of_server(0), at(now));
  return standstill;
}

Standstill::Verdict verdict(const Standstill& standstill, double quiet, double now,
                            bool is_preparing = false) {
  return standstill.look(kWorkers, is_preparing, at(quiet), at(now)).verdict;
}

TEST(Standstill, WhenAllWaitAndNothingArrives) {
  const Standstill standstill = all_waiting(10);
  EXPECT_EQ(verdict(standstill, 30, 40), Standstill::Verdict::kNone);
  EXPECT_EQ(verdict(standstill, 31, 40.1), Standstill::Verdict::kAlarm);
  EXPECT_EQ(verdict(standstill, 60, 70), Standstill::Verdict::kAlarm);
  EXPECT_EQ(verdict(standstill, 61, 70.1), Standstill::Verdict::kRecover);
  EXPECT_EQ(verdict(standstill, 61, 70.1, /*is_preparing=*/true), Standstill::Verdict::kRecover);
  EXPECT_EQ(standstill.look({}, false, at(99), at(99)).verdict, Standstill::Verdict::kNone);
}

TEST(Standstill, NotWhileWhatTheyWaitForChanges) {
  Standstill standstill = all_waiting(10);
  standstill.on_awaited(NodeId(102), chunk_of_server(0, 1), at(60));
  EXPECT_EQ(verdict(standstill, 80, 90), Standstill::Verdict::kNone);
  standstill.on_awaited(NodeId(102), chunk_of_server(0, 1), at(91));  // the same again
  EXPECT_EQ(verdict(standstill, 81, 91), Standstill::Verdict::kAlarm);
}

TEST(Standstill, TenOfTheSlowestRecentIterations) {
  Standstill standstill = all_waiting(10);
  for (const double now : {10.0, 15.0, 35.0, 36.0}) standstill.on_iteration(at(now));
  standstill.on_awaited(NodeId(102), chunk_of_server(0, 1), at(40));
  EXPECT_EQ(verdict(standstill, 204, 240), Standstill::Verdict::kNone);
  EXPECT_EQ(verdict(standstill, 205, 240.1), Standstill::Verdict::kAlarm);
  for (int i = 0; i < 8; ++i) standstill.on_iteration(at(37 + i));
  EXPECT_EQ(verdict(standstill, 31, 240), Standstill::Verdict::kAlarm)
      << "the slow one is long ago";
}

TEST(Standstill, WhoComputesHasMoreTime) {
  Standstill standstill = all_waiting(10);
  standstill.on_awaited(NodeId(102), {}, at(11));
  EXPECT_EQ(verdict(standstill, 2000, 2000), Standstill::Verdict::kNone) << "the first iteration";
  standstill.on_iteration(at(11));
  standstill.on_iteration(at(12));
  EXPECT_EQ(verdict(standstill, 31, 43), Standstill::Verdict::kAlarm);
  EXPECT_EQ(verdict(standstill, 600, 612), Standstill::Verdict::kAlarm);
  EXPECT_EQ(verdict(standstill, 601, 613), Standstill::Verdict::kRecover);
  EXPECT_EQ(verdict(standstill, 601, 613, /*is_preparing=*/true), Standstill::Verdict::kNone)
      << "a checkpoint may be large";
}

TEST(Standstill, ACoordinatorThatWasAwayHasSeenNothing) {
  Standstill standstill = all_waiting(10);
  standstill.extend_deadlines(at(100), at(110));
  EXPECT_EQ(verdict(standstill, 140, 140), Standstill::Verdict::kNone);
  EXPECT_EQ(verdict(standstill, 141, 140.1), Standstill::Verdict::kAlarm);
}

// ---- in a job ----

class StandstillTest : public RecoveryTest {
 protected:
  /// Both workers wait for chunk 0, for which server 0 lacks worker 1's gradient.
  void stand_still(double now) {
    for (const std::uint64_t worker : {101, 102}) {
      job_->on_awaited(NodeId(worker), chunk_of_server(0), at(now));
    }
    std::vector<AwaitedData> lacks = chunk_of_server(0);
    lacks[0].ranks = {WorkerRank(1)};
    job_->on_awaited(NodeId(1), lacks, at(now));
  }
  void tick(double now) { actions_ = job_->tick(at(now)); }
};

TEST_F(StandstillTest, IsAnAlarmThatNamesChunkLayerRankAndServer) {
  train(0, 5);
  tick(3);
  stand_still(4);
  tick(34);
  EXPECT_THAT(job_->progress(at(34)).message, IsEmpty());
  tick(35);
  const std::string message = job_->progress(at(35)).message;
  EXPECT_THAT(message,
              HasSubstr("no progress for 31 s after 5 iterations: worker 0 (10.0.0.101:4711) waits "
                        "for chunk 0 of layer fc of iteration 5 from server 0 (10.0.0.1:4711), "
                        "which waits for worker 1 (10.0.0.102:4711)"));
  EXPECT_GT(job_->progress(at(35)).standstill_seconds, 30);
  const auto lines = only<LogLine>(actions_);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0].kind, LogLine::Kind::kAlarm);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  tick(36);
  EXPECT_THAT(only<LogLine>(actions_), IsEmpty()) << "once";
}

TEST_F(StandstillTest, EndsWithTheNextIteration) {
  train(0, 5);
  tick(3);
  stand_still(4);
  tick(35);
  train(5, 6, 36);
  tick(36);
  EXPECT_THAT(job_->progress(at(36)).message, IsEmpty());
  EXPECT_EQ(job_->progress(at(36)).standstill_seconds, 0);
}

TEST_F(StandstillTest, IsRecoveredFromWithWhatAllHold) {
  train(0, 5);
  tick(3);
  stand_still(4);
  tick(35);
  tick(65);
  EXPECT_EQ(job_->state(), JobState::kHalting);
  EXPECT_THAT(only<SendHalt>(actions_), SizeIs(4));
  for (const std::uint64_t id : {101, 102, 1, 2}) halt(id, 5, 5, 65.1);
  commit(5, 65.2);
  job_->on_epoch(9, at(65.3));
  EXPECT_EQ(job_->view().run.first_iteration, 5) << "nothing is made again";
  EXPECT_EQ(job_->counts().of(EpochEnd::kStandstill), 1u);
  get_ready(66);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  tick(67);
  EXPECT_THAT(job_->progress(at(67)).message, Not(HasSubstr("no progress")));
}

TEST_F(StandstillTest, WhatDoesNotFitThePlanIsLeftOut) {
  train(0, 5);
  tick(3);
  std::vector<AwaitedData> wrong = chunk_of_server(0, 4711);
  wrong.push_back({.layer = LayerIndex(9), .chunk = {}, .iteration = 0, .ranks = {}, .server = {}});
  for (const std::uint64_t worker : {101, 102}) job_->on_awaited(NodeId(worker), wrong, at(4));
  job_->on_awaited(NodeId(77), chunk_of_server(0), at(4));
  tick(70);
  EXPECT_EQ(job_->state(), JobState::kRunning) << "nobody is known to wait";
}

}  // namespace
}  // namespace poseidon::standstill_test
