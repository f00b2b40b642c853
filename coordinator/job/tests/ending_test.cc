#include "coordinator/job/ending.h"

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "common/files/sha256.h"
#include "coordinator/job/preparation.h"
#include "coordinator/job/recovery.h"
#include "coordinator/job/saving.h"
#include "coordinator/job/tests/job_run_test_support.h"
#include "coordinator/job/training.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::ending_test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

/// A job of two workers and two servers that trains, without the rest of JobRun.
class EndingTest : public ::testing::Test {
 protected:
  EndingTest() : EndingTest(description()) {}
  explicit EndingTest(JobDescription job) : job_(JobRunOptions{}, std::move(job), at(0)) {
    job_.staffing.set_members({node(1), node(2), node(101), node(102)});
    EXPECT_TRUE(job_.staffing.choose_nodes(nullptr));
    job_.run = std::make_unique<EpochRun>(*job_.run, Epoch(7), 0, 0, 2);
    absl::StatusOr<Plan> plan =
        job_.description.make_plan({.epoch = Epoch(7),
                                    .batch_size = 32,
                                    .workers = addresses_of(job_.roster().workers),
                                    .servers = addresses_of(job_.roster().servers),
                                    .worker_machines = machines_of(job_.roster().workers),
                                    .server_machines = machines_of(job_.roster().servers)});
    EXPECT_TRUE(plan.ok()) << plan.status();
    job_.run->plan = std::make_shared<const Plan>(*std::move(plan));
    saving_.begin_epoch(actions_);
    for (const JobEvent event :
         {JobEvent::kPlanned, JobEvent::kServersReady, JobEvent::kWorkersReady}) {
      job_.states.transition(event, at(1));
    }
    job_.roster().set_all(ParticipantState::kRunning);
    actions_.clear();
  }

  void train(Iteration to) {
    while (job_.run->iterations.completed() < to) {
      for (const std::uint32_t rank : {0, 1}) {
        job_.run->iterations.add(WorkerRank(rank), 1.0, at(1));
      }
    }
  }
  void stop(double patience, double now) {
    ending_.stop("an operator wants it", at(patience), at(now), actions_);
  }
  /// Both servers have stored their parts. Returns the manifest that shall be written.
  SnapshotId store(Iteration iteration) {
    JobActions actions;
    for (const Participant& s : job_.roster().servers) {
      saving_.on_report(s, {.iteration = iteration, .stored = true, .bytes = 1}, 1, at(2), actions);
    }
    const auto writes = only<WriteManifest>(actions);
    EXPECT_THAT(writes, SizeIs(1));
    return writes.empty() ? SnapshotId() : writes[0].manifest.snapshot;
  }

  JobContext job_;
  Saving saving_{job_};
  Ending ending_{job_, saving_};
  JobActions actions_;
};

TEST_F(EndingTest, AJobThatCannotGoOnTellsEachOfItsNodes) {
  job_.roster().workers[1].state = ParticipantState::kLost;
  ending_.fail("the disk is full", at(3), actions_);
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_EQ(job_.message, "the disk is full");
  EXPECT_EQ(ending_.ended_at(), at(3));
  EXPECT_EQ(ending_.ended_from(), JobState::kRunning);
  EXPECT_FALSE(ending_.was_stopped());
  const auto stops = only<SendStop>(actions_);
  ASSERT_THAT(stops, SizeIs(3)) << "not the lost one";
  EXPECT_FALSE(stops[0].succeeded);
}

TEST_F(EndingTest, TheEndOfAnEpochLeavesItsNodesWaiting) {
  ending_.end_epoch(/*succeeded=*/false, "the job recovers", actions_);
  EXPECT_TRUE(all_in(job_.workers(), ParticipantState::kWaiting));
  actions_.clear();
  ending_.end_epoch(/*succeeded=*/false, "the job recovers", actions_);
  EXPECT_THAT(actions_, SizeIs(0)) << "once";
}

TEST_F(EndingTest, NodesThatWaitForTheNextEpochHearThatTheJobHasEnded) {
  ending_.end_epoch(/*succeeded=*/false, "the job recovers", actions_);
  actions_.clear();
  ending_.fail("nobody came", at(3), actions_);
  const auto stops = only<SendStop>(actions_);
  ASSERT_THAT(stops, SizeIs(4));
  EXPECT_EQ(stops[0].reason, "nobody came");
}

TEST_F(EndingTest, AStopWithoutPatienceEndsAtOnce) {
  train(2);
  stop(0, 3);
  EXPECT_EQ(job_.state(), JobState::kStopped);
  EXPECT_TRUE(ending_.was_stopped());
  EXPECT_TRUE(ending_.ended_unsaved());
  EXPECT_THAT(job_.message, HasSubstr("there is no checkpoint of it"));
  EXPECT_THAT(only<SendSave>(actions_), SizeIs(0));
}

TEST_F(EndingTest, AStopWaitsForACheckpointAndTheReportsBeforeIt) {
  train(2);
  stop(10, 3);
  EXPECT_TRUE(ending_.is_stopping());
  const auto saves = only<SendSave>(actions_);
  ASSERT_THAT(saves, SizeIs(4));
  const Iteration saved = saves[0].iteration;
  EXPECT_THAT(job_.message, HasSubstr("it ends when what it has trained is saved"));
  saving_.on_written(store(saved), absl::OkStatus(), actions_);
  ending_.settle(at(4), actions_);
  EXPECT_FALSE(job_.ended()) << "not all iterations before it were reported";
  EXPECT_THAT(job_.message, HasSubstr("is whole, worker 0"));
  train(saved);
  ending_.settle(at(5), actions_);
  EXPECT_TRUE(ending_.was_stopped());
  EXPECT_FALSE(ending_.ended_unsaved());
  EXPECT_THAT(job_.message, HasSubstr("`poseidon checkpoint restore` goes on from checkpoint 7-"));
}

TEST_F(EndingTest, TheLastPatienceCounts) {
  train(2);
  stop(100, 3);
  ending_.settle(at(50), actions_);
  EXPECT_FALSE(job_.ended());
  EXPECT_TRUE(ending_.has_patience(at(50)));
  stop(1, 51);
  ending_.extend_deadlines(at(2));
  ending_.settle(at(53), actions_);
  EXPECT_FALSE(job_.ended());
  ending_.settle(at(54), actions_);
  EXPECT_TRUE(job_.ended());
  EXPECT_TRUE(ending_.ended_unsaved());
}

TEST_F(EndingTest, AnEpochThatIsOverSavesNothingMore) {
  train(2);
  stop(100, 3);
  ending_.settle_without_waiting(at(4), actions_);
  EXPECT_TRUE(ending_.was_stopped());
}

TEST_F(EndingTest, ADiskThatTakesNoManifestIsNamed) {
  train(2);
  stop(10, 3);
  const Iteration saved = only<SendSave>(actions_)[0].iteration;
  train(saved);
  saving_.on_disk_full(store(saved), "no space left on device", at(4), actions_);
  ending_.settle(at(5), actions_);
  EXPECT_THAT(job_.message, HasSubstr("; no space left on device"));
  EXPECT_FALSE(job_.ended());
  JobActions again;
  saving_.write_again(at(60), again);
  EXPECT_THAT(only<WriteManifest>(again), SizeIs(1));
  saving_.on_disk_full(
      job_.checkpoints.committed().empty() ? snapshot_id(Epoch(7), saved) : SnapshotId(),
      "no space left on device", at(61), actions_);
  ending_.settle(at(70), actions_);
  EXPECT_TRUE(job_.ended());
  EXPECT_THAT(job_.message, HasSubstr("is not written down: no space left on device"));
  EXPECT_EQ(saving_.unwritten(), nullptr) << "given up";
}

TEST_F(EndingTest, IsDoneWhenAllHaveFinishedAndTheModelIsStored) {
  train(kIterations);
  for (Participant& worker : job_.workers()) ending_.on_finished(worker, at(5), actions_);
  EXPECT_FALSE(ending_.is_trained());
  EXPECT_THAT(job_.message, HasSubstr("waits for the model"));
  ending_.on_model_stored(Epoch(6), at(6), actions_);
  EXPECT_FALSE(ending_.is_trained()) << "another epoch's";
  ending_.on_model_stored(Epoch(7), at(6), actions_);
  EXPECT_EQ(job_.state(), JobState::kDone);
  const auto stops = only<SendStop>(actions_);
  ASSERT_THAT(stops, SizeIs(4));
  EXPECT_TRUE(stops[0].succeeded);
}

TEST_F(EndingTest, ALastCheckpointIsWaitedForButNotForEver) {
  train(kIterations);
  JobActions actions;
  saving_.on_report(job_.roster().servers[0],
                    {.iteration = kIterations, .stored = true, .bytes = 1}, 1, at(4), actions);
  for (Participant& worker : job_.workers()) ending_.on_finished(worker, at(5), actions_);
  ending_.on_model_stored(Epoch(7), at(6), actions_);
  EXPECT_TRUE(ending_.is_trained());
  EXPECT_EQ(job_.message, "waits for the last checkpoint");
  ending_.tick_trained(at(7), actions_);
  EXPECT_FALSE(job_.ended());
  ending_.tick_trained(at(1000), actions_);
  EXPECT_EQ(job_.state(), JobState::kDone);
}

TEST_F(EndingTest, AWorkerThatHasNotReportedAllCannotHaveFinished) {
  train(3);
  ending_.on_finished(job_.workers()[0], at(5), actions_);
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_THAT(job_.message, HasSubstr("reported 3 of 12"));
}

/// Programs train it, which alone know when they end.
class ProgramsEndTest : public EndingTest {
 protected:
  ProgramsEndTest() : EndingTest(of_programs()) {}
  static JobDescription of_programs() {
    JobDescription d = description();
    d.iterations = 1'000'000;
    d.programs = {.train_it = true, .end_it = true};
    return d;
  }
  void report(std::uint32_t rank, double loss = 1.0) {
    training_.on_iteration(job_.workers()[rank], job_.run->iterations.next(WorkerRank(rank)), loss,
                           {}, at(3), actions_);
  }

  Preparation preparation_{job_, saving_, ending_};
  Recovery recovery_{job_, saving_, ending_, preparation_};
  Training training_{job_, ending_, recovery_};
};

TEST_F(ProgramsEndTest, TheFirstThatHasFinishedTellsHowManyIterationsThereAre) {
  train(5);
  EXPECT_EQ(job_.known_iterations(), std::nullopt);
  ending_.on_model_announced(job_.workers()[0], std::string(kSha256Bytes, 'd'), at(4), actions_);
  EXPECT_EQ(job_.known_iterations(), 5);
  ending_.on_model_stored(Epoch(7), at(4), actions_);
  for (Participant& worker : job_.workers()) ending_.on_finished(worker, at(5), actions_);
  EXPECT_EQ(job_.state(), JobState::kDone) << job_.message;
}

TEST_F(ProgramsEndTest, AProgramMayNotTellItsLoss) {
  job_.pace.begin_epoch(at(1), 0);
  for (const std::uint32_t rank : {0, 1}) report(rank, std::nan(""));
  EXPECT_FALSE(job_.ended());
  EXPECT_EQ(job_.run->iterations.completed(), 1);
  EXPECT_EQ(job_.run->loss, std::nullopt);
  EXPECT_THAT(only<AppendMetrics>(actions_).at(0).line, HasSubstr("\"loss\":null"));
  report(0, std::numeric_limits<double>::infinity());
  EXPECT_EQ(job_.state(), JobState::kFailed);
}

TEST_F(ProgramsEndTest, OneThatTrainsOnFailsTheJobByName) {
  train(5);
  ending_.on_finished(job_.workers()[1], at(4), actions_);
  EXPECT_FALSE(job_.ended());
  report(0);
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_THAT(job_.message, HasSubstr("worker 0"));
  EXPECT_THAT(job_.message,
              HasSubstr("trains iteration 6, but another worker has finished after 5"));
}

TEST_F(ProgramsEndTest, OneThatEndsTooEarlyFailsTheJobByName) {
  train(5);
  report(0);
  ending_.on_finished(job_.workers()[1], at(4), actions_);
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_THAT(job_.message, HasSubstr("worker 1"));
  EXPECT_THAT(job_.message,
              HasSubstr("has finished after 5 iterations, but another worker trains"));
}

TEST_F(ProgramsEndTest, OneWhoseModelComesTooEarlyFailsTheJobByName) {
  train(5);
  report(1);
  ending_.on_model_announced(job_.workers()[0], std::string(kSha256Bytes, 'd'), at(4), actions_);
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_THAT(job_.message, HasSubstr("worker 0"));
  EXPECT_THAT(job_.message,
              HasSubstr("has finished after 5 iterations, but another worker trains"));
}

TEST_F(ProgramsEndTest, ACheckpointThatWasAskedForBeyondTheEndIsNotWaitedFor) {
  train(5);
  ASSERT_TRUE(saving_.ask(at(3), actions_).ok());
  ASSERT_TRUE(job_.checkpoints.asked_for());
  for (Participant& worker : job_.workers()) ending_.on_finished(worker, at(5), actions_);
  ending_.on_model_stored(Epoch(7), at(6), actions_);
  EXPECT_EQ(job_.state(), JobState::kDone) << job_.message;
}

TEST_F(EndingTest, TakesTheModelThatWorker0AnnouncesWhenItHasTrained) {
  const std::string digest(kSha256Bytes, 'd');
  const auto announce = [&](std::size_t rank, const std::string& sha256) {
    actions_.clear();
    ending_.on_model_announced(job_.workers()[rank], sha256, at(4), actions_);
    const auto refusals = only<CountRefusal>(actions_);
    return refusals.empty() ? std::optional<Refusal>() : refusals.front().refusal;
  };
  train(kIterations - 1);
  EXPECT_TRUE(absl::IsUnavailable(ending_.accepts_model(Epoch(7), digest)));
  EXPECT_EQ(announce(0, digest), Refusal::kWrongState) << "an iteration is to come";
  train(kIterations);
  EXPECT_EQ(announce(1, digest), Refusal::kWrongState) << "worker 1 sends no model";
  EXPECT_EQ(announce(0, "short"), Refusal::kMalformed);
  EXPECT_TRUE(absl::IsUnavailable(ending_.accepts_model(Epoch(7), digest)));
  EXPECT_EQ(announce(0, digest), std::nullopt);
  EXPECT_TRUE(ending_.accepts_model(Epoch(7), digest).ok());
  EXPECT_TRUE(absl::IsAborted(ending_.accepts_model(Epoch(6), digest)));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(ending_.accepts_model(Epoch(7), std::string(kSha256Bytes, 'x'))));
}

TEST_F(EndingTest, TakesNoModelOfAnotherEpochOrAfterTheEnd) {
  EXPECT_TRUE(ending_.accepts_model(Epoch(7)).ok());
  EXPECT_EQ(ending_.accepts_model(Epoch(6)).code(), absl::StatusCode::kAborted);
  ending_.fail("it is over", at(3), actions_);
  EXPECT_EQ(ending_.accepts_model(Epoch(7)).code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace poseidon::ending_test
