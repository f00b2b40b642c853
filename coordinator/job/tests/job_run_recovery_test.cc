#include "coordinator/job/job_run.h"
#include "coordinator/job/tests/job_run_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::job_run_recovery_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(RecoveryTest, ALostWorkerCostsNoIterationThatWasFinished) {
  train(0, 4);
  lose(102, 4);
  EXPECT_THAT(only<SendHalt>(actions_), SizeIs(3));
  EXPECT_EQ(job_->state(), JobState::kHalting);
  EXPECT_STREQ(job_state_name(job_->state()), "recovering");
  halt(101, 4, 4, 4.1);
  halt(1, 3, 4, 4.1);
  halt(2, 4, 5, 4.1);
  const auto saves = only<SendSave>(actions_);
  ASSERT_THAT(saves, SizeIs(3));
  EXPECT_EQ(saves[0].iteration, 4);
  EXPECT_TRUE(saves[0].held);
  EXPECT_THAT(saves[0].lost, ::testing::ElementsAre(WorkerRank(1)));
  commit(4, 4.2);
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(3));
  EXPECT_THAT(only<TakeEpoch>(actions_), IsEmpty()) << "rank 1 is vacant";
  EXPECT_THAT(job_->progress(at(5)).message, HasSubstr("waits for worker 1"));

  join(node(103), 5);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
  EXPECT_THAT(only<TakeEpoch>(members_now(5)), IsEmpty()) << "asked for once";
  actions_ = job_->on_epoch(9, at(5));
  EXPECT_EQ(job_->epoch(), Epoch(9));
  ASSERT_THAT(only<RollBackMetrics>(actions_), SizeIs(1));
  EXPECT_EQ(only<RollBackMetrics>(actions_)[0].iteration, 4);
  EXPECT_THAT(only<SendAssignment>(actions_), SizeIs(2)) << "servers first";
  ASSERT_NE(job_->view().source.manifest(), nullptr);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 4);
  EXPECT_EQ(job_->view().source.addresses()[1], "10.0.0.2:4711");
  EXPECT_EQ(job_->view().roster.workers[0].node.id, NodeId(101)) << "the others keep their ranks";
  EXPECT_EQ(job_->view().roster.workers[1].node.id, NodeId(103));
  get_ready(6);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  train(4, kIterations);
  EXPECT_EQ(job_->progress(at(7)).completed, kIterations);
  EXPECT_EQ(job_->counts().of(EpochEnd::kWorkerLost), 1u);
  EXPECT_EQ(job_->counts().of(EpochEnd::kServerLost), 0u);
  EXPECT_EQ(job_->counts().checkpoints_committed, 1u);
}

/// A worker that only the coordinator did not hear trained on with the others, and its reports are
/// lost with it.
TEST_F(RecoveryTest, ACheckpointBeyondTheMetricsIsNoBeginning) {
  train(0, 7);
  commit(5, 3);
  commit(10, 4);
  lose(101, 5);
  halt(102, 10, 11, 5.1);
  halt(1, 10, 11, 5.1);
  halt(2, 10, 11, 5.1);
  EXPECT_THAT(only<LogLine>(actions_).back().text, HasSubstr("goes back to checkpoint 7-5"));
  join(node(103), 6);
  actions_ = job_->on_epoch(9, at(6));
  ASSERT_NE(job_->view().source.manifest(), nullptr);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 5);
  EXPECT_EQ(only<RollBackMetrics>(actions_).at(0).iteration, 5);
}

// ---- a start from a checkpoint ----

class RestoreTest : public RecoveryTest {
 protected:
  /// A checkpoint of two servers and two workers at iteration 5, and others of the same job.
  void SetUp() override {
    begin(description());
    train(0, 5);
    commit(4, 3);
    commit(5, 3);
    CheckpointManifest later = checkpoint(5);
    later.snapshot = snapshot_id(Epoch(8), 3);
    d_ = description();
    d_.epoch = Epoch(9);
    d_.committed = {checkpoint(4), checkpoint(5), later};
    d_.source = snapshot_id(Epoch(7), 5);
  }
  const CheckpointManifest& checkpoint(Iteration iteration) const {
    return job_->view().checkpoints.committed().at(snapshot_id(Epoch(7), iteration));
  }
  void restore() {
    job_.emplace(JobRunOptions{}, d_, at(0));
    actions_ = job_->on_members(members_, at(1));
  }

  JobDescription d_;
};

TEST_F(RestoreTest, BeginsThereWithItsMetricsAndItsSchemes) {
  restore();
  EXPECT_EQ(job_->progress(at(1)).completed, 5);
  ASSERT_THAT(only<RollBackMetrics>(actions_), SizeIs(1));
  EXPECT_EQ(only<RollBackMetrics>(actions_)[0].iteration, 5);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 5);
  EXPECT_EQ(job_->view().source.addresses()[0], "10.0.0.1:4711");
  EXPECT_THAT(job_->view().run.plan_basis, HasSubstr("checkpoint 7-5"));
  get_ready(2);
  train(5, kIterations);
  EXPECT_EQ(job_->progress(at(7)).completed, kIterations);
}

TEST_F(RestoreTest, OtherNumbersOfNodesFetchFromTheSameStores) {
  d_.workers = 3;
  d_.servers = 1;
  members_ = {node(4), node(1), node(2), node(101), node(102), node(103)};
  restore();
  ASSERT_THAT(only<SendAssignment>(actions_), SizeIs(1));
  EXPECT_EQ(job_->view().roster.servers[0].node.id, NodeId(4))
      << "it holds nothing of the checkpoint";
  EXPECT_EQ(job_->view().source.addresses()[1], "10.0.0.2:4711");
  EXPECT_EQ(job_->view().run.plan_basis, "not calibrated: a test plans without") << "other workers";
}

TEST_F(RestoreTest, WaitsForTheServersThatHaveIt) {
  d_.servers = 1;
  members_ = {node(1), node(101), node(102)};
  restore();
  EXPECT_EQ(job_->state(), JobState::kWaiting);
  EXPECT_THAT(job_->progress(at(1)).message, HasSubstr(node(2).store_identity));
  job_->tick(at(121));
  EXPECT_EQ(job_->state(), JobState::kFailed);
  EXPECT_THAT(job_->progress(at(121)).message, HasSubstr("a part of checkpoint 7-5"));

  restore();
  join(node(3, 2), 2);  // another process with that data directory
  EXPECT_THAT(only<SendAssignment>(actions_), SizeIs(1));
  EXPECT_EQ(job_->view().source.addresses()[1], "10.0.0.3:4711");
}

TEST_F(RestoreTest, ALostServerGoesBackToTheSourceAndToNoOther) {
  restore();
  get_ready(2);
  lose(1, 4);
  join(node(3, 1), 5);
  job_->on_epoch(10, at(5));
  EXPECT_EQ(job_->view().source.manifest()->snapshot, snapshot_id(Epoch(7), 5));
}

TEST_F(RestoreTest, AnUnreadableSourceSaysThatThereMayBeOthers) {
  d_.committed = {checkpoint(5)};  // as in another run directory: all others are the old run's
  restore();
  job_->on_failed(NodeId(1), Epoch(9), "checkpoint 7-5: bits", FailureKind::kCheckpoint, at(2));
  EXPECT_EQ(job_->state(), JobState::kFailed);
  EXPECT_THAT(job_->progress(at(2)).message, HasSubstr("may choose another checkpoint"));
}

// ---- the last checkpoint ----

TEST_F(RecoveryTest, AJobIsDoneWhenItsLastCheckpointIs) {
  JobDescription d = description();
  d.checkpoints.every = 4;
  begin(d);
  train(0, kIterations);
  for (const Participant& w : job_->view().roster.workers)
    job_->on_finished(w.node.id, job_->epoch(), at(4));
  job_->on_model_stored(job_->epoch(), at(4));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_THAT(job_->progress(at(4)).message, HasSubstr("last checkpoint"));
  for (const Iteration due : {4, 8, 12}) {
    EXPECT_EQ(job_->state(), JobState::kRunning);
    commit(due, 5);
  }
  EXPECT_EQ(job_->state(), JobState::kDone);
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(4));
}

TEST_F(RecoveryTest, AJobIsDoneWhenTheCheckpointsThatWereDueAre) {
  JobDescription d = description();
  d.checkpoints.every = 5;
  begin(d);
  train(0, kIterations);
  for (const Participant& w : job_->view().roster.workers)
    job_->on_finished(w.node.id, job_->epoch(), at(4));
  job_->on_model_stored(job_->epoch(), at(4));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  // At once, as of a worker: the disks of servers are slower.
  job_->on_checkpoint_report(NodeId(101), job_->epoch(),
                             {.iteration = 10, .stored = false, .reason = "no room"}, 1, at(4.5));
  EXPECT_EQ(job_->state(), JobState::kRunning) << "5 of 12 is still to come";
  commit(5, 5);
  EXPECT_EQ(job_->state(), JobState::kDone);
}

TEST_F(RecoveryTest, ALastCheckpointThatNeverComesIsNotWaitedForForEver) {
  for (const bool lose_server : {false, true}) {
    JobDescription d = description();
    d.checkpoints.every = 4;
    begin(d);
    train(0, kIterations);
    for (const Participant& w : job_->view().roster.workers)
      job_->on_finished(w.node.id, job_->epoch(), at(4));
    job_->on_model_stored(job_->epoch(), at(4));
    if (lose_server) {
      lose(1, 5);
    } else {
      job_->tick(at(123));
      EXPECT_EQ(job_->state(), JobState::kRunning);
      job_->tick(at(125));
    }
    EXPECT_EQ(job_->state(), JobState::kDone) << "the model is there";
  }
}

TEST_F(RecoveryTest, VersionsGoBackTogetherToWhatAllHaveReported) {
  train(0, 4);
  job_->on_iteration(NodeId(101), job_->epoch(), 4, 1.0, at(3));
  lose(102, 4);
  halt(101, 4, 5, 4.1);
  halt(1, 4, 5, 4.1);
  halt(2, 4, 5, 4.1);
  EXPECT_EQ(only<SendSave>(actions_)[0].iteration, 4) << "worker 1 never told its loss of 4";
}

TEST_F(RecoveryTest, WhatDoesNotFitTogetherGoesBackToTheCheckpoint) {
  train(0, 3);
  commit(2, 3);
  lose(102, 4);
  halt(101, 3, 3, 4.1);
  halt(1, 4, 5, 4.1);
  halt(2, 4, 4, 4.1);
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(3));
  join(node(103), 5);
  job_->on_epoch(9, at(5));
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 2);
}

TEST_F(RecoveryTest, WhoDoesNotHaltIsNotWaitedForForEver) {
  train(0, 3);
  lose(102, 4);
  halt(1, 3, 3, 4.1);
  EXPECT_THAT(job_->tick(at(60)), IsEmpty());
  actions_ = job_->tick(at(65));
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(3));
  EXPECT_THAT(only<LogLine>(actions_)[0].text, HasSubstr("not halted: worker 0"));
  EXPECT_EQ(job_->state(), JobState::kReplacing);
}

TEST_F(RecoveryTest, ALostWorkerZeroCostsOneIterationWhenAServerDoesNotHaveItsLastState) {
  train(0, 4);
  lose(101, 4);
  halt(102, 3, 4, 4.1);
  halt(1, 3, 3, 4.1);  // its chunks have 3 and 4; of worker 0's own state it has 1 to 3
  halt(2, 3, 4, 4.1);
  const auto saves = only<SendSave>(actions_);
  ASSERT_THAT(saves, SizeIs(3));
  EXPECT_EQ(saves[0].iteration, 3);
  EXPECT_THAT(saves[0].lost, ::testing::ElementsAre(WorkerRank(0)));
}

TEST_F(RecoveryTest, TheLastWorkerIsLostAndTheServersHaveItAll) {
  train(0, 4);
  lose(101, 4);
  lose(102, 4);
  halt(1, 3, 4, 4.1);
  halt(2, 4, 4, 4.1);
  const auto saves = only<SendSave>(actions_);
  ASSERT_THAT(saves, SizeIs(2));
  EXPECT_EQ(saves[0].iteration, 4);
  commit(4, 4.2);
  EXPECT_EQ(job_->state(), JobState::kReplacing);
}

TEST_F(RecoveryTest, ALostServerIsAwaitedWithItsData) {
  train(0, 5);
  commit(4, 3);
  lose(2, 4);
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(3)) << "its part of the iteration is gone";
  join(node(3), 5);
  EXPECT_THAT(only<TakeEpoch>(actions_), IsEmpty()) << "it has another directory";
  join(node(4, /*store=*/2), 6);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
  actions_ = job_->on_epoch(9, at(6));
  EXPECT_EQ(only<RollBackMetrics>(actions_)[0].iteration, 4);
  EXPECT_EQ(job_->view().roster.servers[1].node.id, NodeId(4));
  EXPECT_EQ(job_->view().source.addresses()[1], "10.0.0.4:4711");
}

/// As the record has it meanwhile, from which the next coordinator goes on: from the beginning it
/// must not.
TEST_F(RecoveryTest, WhileTheCheckpointsServerIsAwayTheEpochIsWhatItWas) {
  lose_the_second_worker();
  join(node(103), 5);
  job_->on_epoch(9, at(5));
  get_ready(6);
  ASSERT_EQ(job_->view().run.first_iteration, 3);
  train(3, 5, 6.5);
  lose(2, 7);
  for (const double later : {7.1, 60.0, 200.0}) {
    job_->tick(at(later));
    EXPECT_EQ(job_->state(), JobState::kReplacing);
    EXPECT_EQ(job_->view().run.first_iteration, 3);
    EXPECT_EQ(job_->view().run.samples, 3u * 2 * 32);
  }
  join(node(4, /*store=*/2), 201);
  actions_ = job_->on_epoch(11, at(201));
  EXPECT_EQ(only<RollBackMetrics>(actions_)[0].iteration, 3);
  EXPECT_THAT(job_->view().roster.servers, SizeIs(2)) << "its place has waited for it";
}

TEST_F(RecoveryTest, WithoutACheckpointItBeginsAnew) {
  train(0, 5);
  lose(2, 4);
  join(node(4, 2), 6);
  actions_ = job_->on_epoch(9, at(6));
  EXPECT_EQ(job_->view().source.manifest(), nullptr);
  EXPECT_EQ(job_->view().run.first_iteration, 0);
  EXPECT_EQ(only<RollBackMetrics>(actions_)[0].iteration, 0);
  EXPECT_EQ(job_->counts().of(EpochEnd::kServerLost), 1u);
}

TEST_F(RecoveryTest, WithFewerServersItGoesOnByTheSameSchemes) {
  JobDescription d = description();
  std::vector<std::optional<PlanPin>> kept;
  d.make_plan = [plan = d.make_plan, &kept](JobDescription::PlanRequest wanted) {
    kept.push_back(wanted.keep);
    return plan(std::move(wanted));
  };
  begin(d);
  EXPECT_EQ(kept.back(), std::nullopt);
  const Scheme scheme = job_->view().run.plan->layers[0].scheme;
  const std::string reason = job_->view().run.plan->layers[0].reason;
  train(0, 5);
  lose(2, 4);
  job_->tick(at(4 + seconds(d.replace_timeout) + 1));
  job_->on_epoch(9, at(100));
  ASSERT_EQ(job_->view().run.plan->servers(), 1u);
  ASSERT_TRUE(kept.back());
  EXPECT_EQ(kept.back()->layers[0].scheme, scheme);
  EXPECT_EQ(job_->view().run.plan->layers[0].scheme, scheme);
  EXPECT_EQ(job_->view().run.plan->layers[0].reason, reason) << "the job has no sync.plan";
}

TEST_F(RecoveryTest, AfterAWhileItGoesOnWithFewerWorkers) {
  train(0, 4);
  lose(101, 4);
  for (const std::uint64_t id : {102, 1, 2}) halt(id, 4, 4, 4);
  commit(4, 4);
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(33.9))), IsEmpty());
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(34.1))), SizeIs(1));
  job_->on_epoch(9, at(34.2));
  ASSERT_THAT(job_->view().roster.workers, SizeIs(1));
  EXPECT_EQ(job_->view().roster.workers[0].node.id, NodeId(102));
  EXPECT_EQ(job_->view().roster.workers[0].index, 0u);
  EXPECT_EQ(job_->view().run.plan->workers(), 1u);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 4);
}

TEST_F(RecoveryTest, ButNotWithFewerThanTheJobAllows) {
  JobDescription d = description();
  d.min_workers = 2;
  begin(d);
  train(0, 4);
  lose(101, 4);
  for (const std::uint64_t id : {102, 1, 2}) halt(id, 4, 4, 4);
  commit(4, 4);
  EXPECT_THAT(job_->tick(at(600)), IsEmpty());
  actions_ = job_->tick(at(700));
  EXPECT_EQ(job_->state(), JobState::kFailed);
  EXPECT_THAT(job_->progress(at(700)).message, HasSubstr("worker 0 (10.0.0.101:4711) was lost"));
  EXPECT_THAT(job_->progress(at(700)).message, HasSubstr("checkpoint 7-4 is kept"));
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(3)) << "who waits for the next epoch";
}

/// Simulation seed 4905: the text named the worker alone, which would not have helped.
TEST_F(RecoveryTest, TheEndNamesBothTheWorkerAndTheStoreThatAreMissing) {
  JobDescription d = description();
  d.min_workers = 2;
  begin(d);
  train(0, 5);
  commit(4, 3);
  lose(2, 4);
  lose(101, 5);
  join(node(3), 6);
  job_->tick(at(700));
  ASSERT_EQ(job_->state(), JobState::kFailed);
  const std::string why = job_->progress(at(700)).message;
  EXPECT_THAT(why, HasSubstr("there is still no worker 0 (10.0.0.101:4711), the server"));
  EXPECT_THAT(why, HasSubstr(node(2).store_identity));
}

TEST_F(RecoveryTest, AnEpochThatCannotBeWrittenDownIsAskedForAgain) {
  lose_the_second_worker();
  join(node(103), 5);
  ASSERT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
  const absl::Status full = absl::ResourceExhaustedError("no space left on device");
  actions_ = job_->on_epoch(full, at(5));
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  EXPECT_THAT(only<LogLine>(actions_)[0].text, HasSubstr("no space left on device; tries again"));
  EXPECT_THAT(job_->tick(at(7)), IsEmpty());
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(8.1))), SizeIs(1));
  EXPECT_THAT(job_->on_epoch(full, at(8.2)), IsEmpty()) << "said once";
  EXPECT_THAT(job_->progress(at(9)).message, HasSubstr("no space left on device"));
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(12))), SizeIs(1));
  job_->on_epoch(9, at(12));
  get_ready(13);
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

TEST_F(RecoveryTest, AFullDiskIsNotWaitedForForEver) {
  lose_the_second_worker();
  join(node(103), 5);
  job_->on_epoch(absl::ResourceExhaustedError("no space left on device"), at(700));
  EXPECT_EQ(job_->state(), JobState::kFailed);
}

TEST_F(RecoveryTest, ADiskThatDoesNotAnswerIsNotWaitedForForEver) {
  lose_the_second_worker();
  join(node(103), 5);
  ASSERT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
  const double limit = seconds(JobRunOptions{}.recovery_timeout);
  job_->tick(at(5 + limit));
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  job_->tick(at(5.1 + limit));
  EXPECT_EQ(job_->state(), JobState::kFailed);
  EXPECT_THAT(job_->progress(at(700)).message, HasSubstr("state directory has not taken"));
  EXPECT_THAT(job_->on_epoch(9, at(700)), IsEmpty());
}

TEST_F(RecoveryTest, ACheckpointThatCannotBeReadIsNotTriedAgain) {
  train(0, 6);
  commit(2, 3);
  commit(4, 3);
  lose(2, 4);
  join(node(4, 2), 5);
  job_->on_epoch(9, at(5));
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 4);
  job_->on_failed(NodeId(1), Epoch(9), "checkpoint 7-4: bits", FailureKind::kCheckpoint, at(6));
  actions_ = job_->on_epoch(10, at(6));
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 2);
  EXPECT_EQ(only<RollBackMetrics>(actions_)[0].iteration, 2);
  job_->on_failed(NodeId(1), Epoch(10), "checkpoint 7-2: bits", FailureKind::kCheckpoint, at(6));
  EXPECT_EQ(job_->state(), JobState::kFailed) << "never silently from the beginning";
  EXPECT_THAT(job_->progress(at(7)).message, HasSubstr("no other checkpoint is left"));
}

TEST_F(RecoveryTest, ItDoesNotRecoverForEverWithoutProgress) {
  begin_with_workers(8);
  const double spacing = seconds(IdleRecoveriesOptions{}.spacing);
  for (int i = 0; i < IdleRecoveriesOptions{}.most; ++i) lose_and_replace(4 + i * spacing);
  lose(next_lost_, 100);
  EXPECT_EQ(job_->state(), JobState::kFailed);
  EXPECT_THAT(job_->progress(at(100)).message, HasSubstr("recovered 5 times in a row"));
}

TEST_F(RecoveryTest, LossesOnTheWayBackAreNoStandstill) {
  begin_with_workers(20);
  train(0, kIterations - 1);
  lose_and_replace(4);  // nobody has kept anything: it begins anew
  const double spacing = seconds(IdleRecoveriesOptions{}.spacing);
  const Iteration rounds = 2 * IdleRecoveriesOptions{}.most;
  ASSERT_LT(rounds, kIterations - 1) << "it is not where it was before";
  for (Iteration i = 0; i < rounds; ++i) {
    const double now = 4 + static_cast<double>(i + 1) * spacing;
    train(i, i + 1, now);
    lose(next_lost_++, now);
    std::vector<std::uint64_t> left;
    for (const auto* group : job_->view().roster.groups()) {
      for (const Participant& p : *group) {
        if (p.state != ParticipantState::kLost) left.push_back(p.node.id.value());
      }
    }
    for (const std::uint64_t id : left) halt(id, i + 1, i + 1, now);
    commit(i + 1, now);
    join(node(next_lost_ + 500), now);
    job_->on_epoch(job_->epoch().value() + 1, at(now));
    get_ready(now);
    ASSERT_EQ(job_->state(), JobState::kRunning) << i;
    EXPECT_EQ(job_->view().run.first_iteration, i + 1);
  }
}

TEST_F(RecoveryTest, LossesCloseTogetherAreOneTrouble) {
  begin_with_workers(20);
  for (int i = 0; i < 3 * IdleRecoveriesOptions{}.most; ++i) lose_and_replace(4 + 0.1 * i);
}

TEST_F(RecoveryTest, AFastLoopOfLossesEndsToo) {
  begin_with_workers(64);
  const double spacing = seconds(IdleRecoveriesOptions{}.spacing);
  double t = 4;
  const double last = t + IdleRecoveriesOptions{}.most * spacing;
  for (; t < last; t += 0.25) lose_and_replace(t);
  lose(next_lost_, t);
  EXPECT_EQ(job_->state(), JobState::kFailed);
}

TEST_F(RecoveryTest, WhyAnAttemptFailedIsSaidWhileTheNextOneIsPrepared) {
  train(0, 4);
  lose(102, 4);
  for (const std::uint64_t id : {101, 1, 2}) halt(id, 4, 4, 4.1);
  commit(4, 4.2);
  join(node(103), 5);
  actions_ = job_->on_epoch(9, at(5));
  EXPECT_EQ(job_->progress(at(5)).message, "prepares 2 servers");
  lose(103, 6);
  join(node(104), 7);
  actions_ = job_->on_epoch(10, at(7));
  EXPECT_THAT(job_->progress(at(7)).message,
              HasSubstr("prepares 2 servers; the attempt before failed: worker 1 "));
  get_ready(8);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(job_->progress(at(8)).message, "");
}

TEST_F(RecoveryTest, APeerThatDoesNotAnswerIsNoFaultOfTheJob) {
  train(0, 3);
  actions_ = job_->on_failed(NodeId(101), job_->epoch(), "server b:1 does not answer",
                             FailureKind::kPeer, at(5));
  EXPECT_EQ(job_->state(), JobState::kHalting);
  EXPECT_THAT(only<SendHalt>(actions_), SizeIs(4)) << "nobody is gone";
  EXPECT_THAT(job_->on_failed(NodeId(102), job_->epoch(), "server b:1 does not answer",
                              FailureKind::kPeer, at(5.1)),
              IsEmpty())
      << "it holds what it has, too";
  for (const std::uint64_t id : {101, 102, 1, 2}) halt(id, 3, 3, 5.2);
  EXPECT_EQ(job_->state(), JobState::kSaving);
  EXPECT_TRUE(only<SendSave>(actions_)[0].held);
}

/// A worker had finished, another is lost in its last test, and the first goes before it has
/// halted.
TEST_F(RecoveryTest, WhoHadFinishedAndIsLostIsNotWaitedFor) {
  train(0, kIterations);
  job_->on_finished(NodeId(102), job_->epoch(), at(4));
  lose(101, 5);
  EXPECT_EQ(job_->state(), JobState::kHalting);
  for (const std::uint64_t id : {1, 2}) halt(id, kIterations, kIterations, 5.1);
  EXPECT_EQ(job_->state(), JobState::kHalting);
  lose(102, 5.2);
  EXPECT_EQ(job_->state(), JobState::kSaving) << "all that are there have halted";
  EXPECT_EQ(only<SendSave>(actions_)[0].iteration, kIterations);
}

TEST_F(RecoveryTest, StaleWordsAreRefused) {
  train(0, 3);
  lose(102, 4);
  for (const std::uint64_t id : {101, 1, 2}) halt(id, 3, 3, 4.1);
  halt(101, 3, 3, 4.2);
  EXPECT_THAT(only<CountRefusal>(actions_), IsEmpty()) << "another coordinator had asked, too";
  commit(3, 4.2);
  EXPECT_THAT(only<CountRefusal>(job_->on_iteration(NodeId(101), Epoch(7), 3, 1.0, at(5))),
              SizeIs(1));
  join(node(103), 5);
  job_->on_epoch(9, at(5));
  get_ready(6);
  EXPECT_THAT(only<CountRefusal>(job_->on_iteration(NodeId(101), Epoch(7), 4, 1.0, at(7))),
              SizeIs(1));
  EXPECT_THAT(only<CountRefusal>(job_->on_iteration(NodeId(102), Epoch(9), 4, 1.0, at(7))),
              SizeIs(1));
}

}  // namespace
}  // namespace poseidon::job_run_recovery_test
