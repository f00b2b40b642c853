// A job that somebody wants to end.

#include "coordinator/job/tests/job_run_test_support.h"

namespace poseidon::job_run_stop_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr Nanoseconds kPatience = at(60);

class StopTest : public RecoveryTest {
 protected:
  void stop(double now, Nanoseconds patience = kPatience) {
    actions_ = job_->stop("an operator stopped it", patience, at(now));
  }
  enum Saved { kSaved, kUnsaved };
  void expect_end(const std::string& message, Saved saved, std::size_t stops = 4) {
    EXPECT_EQ(job_->state(), JobState::kStopped);
    EXPECT_TRUE(job_->view().ending.was_stopped());
    EXPECT_EQ(job_->view().ending.ended_unsaved(), saved == kUnsaved);
    EXPECT_EQ(job_->progress(at(99)).message, message);
    EXPECT_THAT(only<SendStop>(actions_), SizeIs(stops));
    EXPECT_THAT(only<SendStop>(actions_), Each(Field(&SendStop::reason, message)));
    EXPECT_THAT(only<TakeEpoch>(actions_), IsEmpty());
    for (const LogLine& line : only<LogLine>(actions_)) {
      EXPECT_NE(line.kind, LogLine::Kind::kAlarm) << line.text;
    }
  }
};

TEST_F(StopTest, WhatItHasTrainedIsSavedFirst) {
  train(0, 4);
  stop(5);
  ASSERT_THAT(only<SendSave>(actions_), SizeIs(4));
  const Iteration saved = only<SendSave>(actions_)[0].iteration;
  EXPECT_EQ(job_->state(), JobState::kRunning) << "training goes on meanwhile";
  EXPECT_EQ(job_->progress(at(5)).message,
            "an operator stopped it; it ends when what it has trained is saved");
  train(4, saved + 1);
  job_->tick(at(6));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  commit(saved, 7);
  expect_end("an operator stopped it; `poseidon checkpoint restore` goes on from checkpoint 7-" +
                 std::to_string(saved),
             kSaved);
  EXPECT_THAT(job_->stop("again", kPatience, at(8)), IsEmpty());
}

// Whoever goes on makes the iterations behind the checkpoint again, and the model that is left is
// the checkpoint's.
TEST_F(StopTest, ItEndsAsOfItsCheckpoint) {
  train(0, 4);
  stop(5);
  const Iteration saved = only<SendSave>(actions_)[0].iteration;
  train(4, saved + 2);
  commit(saved, 7);
  ASSERT_EQ(job_->state(), JobState::kStopped);
  ASSERT_TRUE(job_->view().ending.left_at());
  EXPECT_EQ(job_->view().ending.left_at()->iteration(), saved);
  ASSERT_THAT(only<RollBackMetrics>(actions_), SizeIs(1));
  EXPECT_EQ(only<RollBackMetrics>(actions_)[0].iteration, saved);
  EXPECT_EQ(job_->progress(at(8)).completed, saved);
}

TEST_F(StopTest, WhatIsNotSavedKeepsItsMetrics) {
  train(0, 4);
  commit(2, 4);
  stop(5, at(0));
  ASSERT_TRUE(job_->view().ending.left_at());
  EXPECT_EQ(job_->view().ending.left_at()->iteration(), 2);
  EXPECT_THAT(only<RollBackMetrics>(actions_), IsEmpty());
  EXPECT_EQ(job_->progress(at(8)).completed, 4);
}

TEST_F(StopTest, AFullStateDirectoryIsTriedAgainAsLongAsItMay) {
  train(0, 4);
  stop(5);
  const Iteration saved = only<SendSave>(actions_)[0].iteration;
  train(4, saved + 1);
  for (const std::uint64_t id : {1, 2}) {
    actions_ = job_->on_checkpoint_report(
        NodeId(id), job_->epoch(), {.iteration = saved, .stored = true, .bytes = 10}, 1, at(6));
  }
  ASSERT_THAT(only<WriteManifest>(actions_), SizeIs(1));
  const SnapshotId snapshot = snapshot_id(Epoch(7), saved);
  job_->on_manifest_written(snapshot, absl::ResourceExhaustedError("disk full"), at(7));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_THAT(only<WriteManifest>(job_->tick(at(9))), IsEmpty());
  EXPECT_THAT(job_->progress(at(9)).message, HasSubstr("is saved; disk full"));
  EXPECT_THAT(only<WriteManifest>(job_->tick(at(10))), SizeIs(1));
  actions_ = job_->on_manifest_written(snapshot, absl::OkStatus(), at(11));
  expect_end("an operator stopped it; `poseidon checkpoint restore` goes on from checkpoint 7-" +
                 std::to_string(saved),
             kSaved);
}

// Servers may be faster than the worker whose stream is broken: its lines are awaited.
TEST_F(StopTest, ReportsOfWhatIsSavedAreAwaited) {
  train(0, 4);
  stop(5);
  const Iteration saved = only<SendSave>(actions_)[0].iteration;
  commit(saved, 6);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_TRUE(job_->view().ending.is_stopping());
  EXPECT_THAT(job_->progress(at(6)).message,
              HasSubstr("saved; checkpoint 7-" + std::to_string(saved) + " is whole, worker 0 ("));
  EXPECT_THAT(job_->progress(at(6)).message, HasSubstr(") has told of 4 iterations so far"));
  train(4, saved);
  actions_ = job_->tick(at(7));
  expect_end("an operator stopped it; `poseidon checkpoint restore` goes on from checkpoint 7-" +
                 std::to_string(saved),
             kSaved);
}

TEST_F(StopTest, APeriodicCheckpointThatIsWholeFirstWillDo) {
  train(0, 4);
  stop(5);
  const Iteration asked = only<SendSave>(actions_)[0].iteration;
  ASSERT_GT(asked, 5);
  train(4, 5);
  commit(5, 6);
  expect_end("an operator stopped it; `poseidon checkpoint restore` goes on from checkpoint 7-5",
             kSaved);
}

TEST_F(StopTest, OneThatWasWholeBeforeIsNoneOfWhatWasTrainedSince) {
  train(0, 4);
  commit(3, 4);
  stop(5);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  commit(only<SendSave>(actions_)[0].iteration, 6);
  EXPECT_EQ(job_->state(), JobState::kRunning) << "its lines are awaited";
}

/// One worker is cut off from the coordinator, and has told of less.
TEST_F(StopTest, WhatIsAskedForIsAheadOfWhoeverHasToldMost) {
  train(0, 3);
  for (Iteration i = 3; i < 8; ++i) job_->on_iteration(NodeId(101), job_->epoch(), i, 1.0, at(4));
  const absl::StatusOr<JobActions> asked = job_->save_checkpoint(at(5));
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(only<SendSave>(*asked).at(0).iteration, 10);
}

/// A periodic one is whole already where training is ahead of its reports.
TEST_F(StopTest, WhatIsAskedForMayBeThereAlready) {
  train(0, 4);
  commit(6, 4.5);
  const absl::StatusOr<JobActions> asked = job_->save_checkpoint(at(5));
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_THAT(only<SendSave>(*asked), IsEmpty());
  EXPECT_EQ(job_->view().checkpoints.asked_for(), std::nullopt);
  EXPECT_EQ(job_->view().saving.asked_for(), 6);
  train(4, 7);
  ASSERT_TRUE(job_->save_checkpoint(at(8)).ok());
  EXPECT_EQ(job_->view().saving.asked_for(), 9);
}

TEST_F(StopTest, WithoutPatienceItEndsAtOnce) {
  train(0, 4);
  commit(2, 4);
  stop(5, at(0));
  expect_end("an operator stopped it; `poseidon checkpoint restore` goes on from checkpoint 7-2",
             kUnsaved);
}

TEST_F(StopTest, WhatHasNotTrainedHasNothingToSave) {
  stop(5);
  expect_end("an operator stopped it; there is no checkpoint of it", kSaved);
}

TEST_F(StopTest, ItIsNotWaitedForForEver) {
  train(0, 4);
  stop(5);
  job_->tick(at(64.9));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  actions_ = job_->tick(at(65));
  expect_end("an operator stopped it; there is no checkpoint of it", kUnsaved);
}

TEST_F(StopTest, TimeInWhichNobodyCouldBeHeardIsNotCounted) {
  train(0, 4);
  stop(5);
  job_->extend_deadlines(at(30), at(40));
  job_->tick(at(90));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  actions_ = job_->tick(at(95));
  expect_end("an operator stopped it; there is no checkpoint of it", kUnsaved);
}

TEST_F(StopTest, TheLastPatienceCounts) {
  train(0, 4);
  stop(5);
  stop(6, at(0));
  expect_end("an operator stopped it; there is no checkpoint of it", kUnsaved);
}

TEST_F(StopTest, ACheckpointThatFailsIsSaid) {
  train(0, 4);
  commit(2, 4);
  stop(5);
  const Iteration saved = only<SendSave>(actions_)[0].iteration;
  actions_ = job_->on_checkpoint_report(NodeId(1), job_->epoch(),
                                        {.iteration = saved, .reason = "disk full"}, 1, at(6));
  EXPECT_EQ(job_->state(), JobState::kStopped);
  EXPECT_TRUE(job_->view().ending.ended_unsaved());
  EXPECT_THAT(job_->progress(at(7)).message,
              AllOf(HasSubstr("goes on from checkpoint 7-2"),
                    HasSubstr("7-" + std::to_string(saved) + " failed: "), HasSubstr("disk full")));
}

TEST_F(StopTest, AWorkerThatIsLostMeanwhileCostsNothing) {
  train(0, 4);
  stop(5);
  lose(102, 6);
  for (const std::uint64_t id : {101, 1, 2}) halt(id, 4, 4, 6.1);
  EXPECT_EQ(job_->state(), JobState::kSaving);
  commit(4, 6.2);
  expect_end("an operator stopped it; `poseidon checkpoint restore` goes on from checkpoint 7-4",
             kSaved, 3);
}

TEST_F(StopTest, SoWithOneThatWasLostBefore) {
  train(0, 4);
  lose(102, 4);
  stop(5);
  EXPECT_EQ(job_->state(), JobState::kHalting);
  for (const std::uint64_t id : {101, 1, 2}) halt(id, 4, 4, 6.1);
  commit(4, 6.2);
  expect_end("an operator stopped it; `poseidon checkpoint restore` goes on from checkpoint 7-4",
             kSaved, 3);
}

TEST_F(StopTest, WithoutAServerThereIsNothingToWaitFor) {
  train(0, 4);
  commit(2, 4);
  stop(5);
  lose(1, 6);
  EXPECT_EQ(job_->state(), JobState::kStopped);
  EXPECT_TRUE(job_->view().ending.ended_unsaved());
  EXPECT_THAT(job_->progress(at(7)).message, HasSubstr("goes on from checkpoint 7-2"));
  for (const LogLine& line : only<LogLine>(actions_)) {
    EXPECT_THAT(line.text, Not(HasSubstr("goes back to"))) << "it does not";
  }
}

TEST_F(StopTest, AJobThatWaitsForNodesEndsAtOnce) {
  lose_the_second_worker();
  ASSERT_EQ(job_->state(), JobState::kReplacing);
  stop(5);
  expect_end("an operator stopped it; `poseidon checkpoint restore` goes on from checkpoint 7-3",
             kSaved, 3);
}

TEST_F(StopTest, AJobThatHasAllItsIterationsBecomesDone) {
  train(0, kIterations);
  stop(5);
  for (const Participant& w : job_->view().roster.workers)
    job_->on_finished(w.node.id, job_->epoch(), at(6));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  job_->on_model_stored(job_->epoch(), at(7));
  EXPECT_EQ(job_->state(), JobState::kDone);
  EXPECT_FALSE(job_->view().ending.was_stopped());
}

TEST_F(StopTest, SoDoesOneOfWhichOnlyTheLastCheckpointIsMissing) {
  JobDescription d = description();
  d.checkpoints.every = kIterations;
  begin(d);
  train(0, kIterations);
  for (const Participant& w : job_->view().roster.workers)
    job_->on_finished(w.node.id, job_->epoch(), at(4));
  job_->on_model_stored(job_->epoch(), at(4));
  ASSERT_EQ(job_->state(), JobState::kRunning);
  stop(5, at(0));
  EXPECT_EQ(job_->state(), JobState::kDone);
}

TEST_F(StopTest, WithoutItsModelThereIsTheCheckpointOfItsEnd) {
  JobDescription d = description();
  d.checkpoints.every = kIterations;
  begin(d);
  train(0, kIterations);
  commit(kIterations, 4);
  stop(5, at(0));
  expect_end(
      "an operator stopped it; `poseidon checkpoint export` writes the model of its end from "
      "checkpoint 7-12",
      kSaved);
}

TEST_F(StopTest, NobodyIsTakenInAnyMore) {
  begin(elastic(60));
  train(0, 3);
  join(node(103), 4);
  actions_ = job_->tick(at(6.1));
  ASSERT_THAT(only<SendSave>(actions_), SizeIs(4)) << "to take it in";
  const Iteration saved = only<SendSave>(actions_)[0].iteration;
  stop(6.2);
  EXPECT_THAT(only<SendSave>(actions_), IsEmpty()) << "the same one will do";
  train(3, saved + 1);
  commit(saved, 7);
  expect_end("an operator stopped it; `poseidon checkpoint restore` goes on from checkpoint 7-" +
                 std::to_string(saved),
             kSaved);
}

TEST_F(StopTest, WhatFailsMeanwhileHasFailed) {
  train(0, 4);
  stop(5);
  actions_ =
      job_->on_failed(NodeId(101), job_->epoch(), "its data are gone", FailureKind::kJob, at(6));
  EXPECT_EQ(job_->state(), JobState::kFailed);
  EXPECT_FALSE(job_->view().ending.was_stopped());
  EXPECT_EQ(only<LogLine>(actions_).at(0).kind, LogLine::Kind::kAlarm);
}

TEST_F(JobRunTest, AJobThatHasNotBegunIsStoppedAtOnce) {
  job_.emplace(JobRunOptions{}, description(2, 2), at(0));
  job_->stop("an operator stopped it", kPatience, at(1));
  EXPECT_EQ(job_->state(), JobState::kStopped);
  prepare_servers();
  actions_ = job_->stop("an operator stopped it", kPatience, at(4));
  EXPECT_EQ(job_->state(), JobState::kStopped);
  EXPECT_EQ(job_->progress(at(5)).message, "an operator stopped it; there is no checkpoint of it");
  EXPECT_FALSE(job_->view().ending.left_at());
}

}  // namespace
}  // namespace poseidon::job_run_stop_test
