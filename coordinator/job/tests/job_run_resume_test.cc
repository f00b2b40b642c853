// Nodes that come back to a job, and a job that another coordinator began.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/job/job_run.h"
#include "coordinator/job/tests/job_run_test_support.h"
#include "coordinator/planning/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::job_run_resume_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Epoch kEpoch(7);
constexpr Iteration kIterations = 5;

constexpr Nanoseconds at(double seconds) {
  return Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

Participant participant(std::uint64_t id, NodeRole role, std::uint32_t index) {
  NodeInfo info;
  info.id = NodeId(id);
  info.role = role;
  info.address = "10.0.0." + std::to_string(id) + ":4711";
  return {.node = info, .index = index};
}

/// Node 1 is the server, nodes 11 and 12 are the workers; two iterations and a test are in
/// metrics.jsonl.
class JobResumeTest : public ::testing::Test {
 protected:
  void resume(Iteration completed = 2, bool model_stored = false,
              const std::function<void(RunningJob&)>& change = nullptr,
              std::vector<CheckpointManifest> committed = {}) {
    JobDescription d;
    d.committed = std::move(committed);
    d.id = "digits-7";
    d.epoch = kEpoch;
    d.batch_size = 32;
    d.iterations = kIterations;
    d.learning_rate = [](Iteration) { return 0.5; };
    d.why_no_calibration = [](const auto&, const auto&) { return "a test"; };
    d.make_plan = [](JobDescription::PlanRequest wanted) {
      return make_plan({.layers = {{"fc", "fully_connected", {10, 5}, 60, true}},
                        .batch_size = 32,
                        .epoch = wanted.epoch,
                        .worker_addresses = std::move(wanted.workers),
                        .server_addresses = std::move(wanted.servers),
                        .sync = {},
                        .calibration = std::move(wanted.calibration)});
    };
    RunningJob running;
    running.workers = {participant(11, NodeRole::kWorker, 0),
                       participant(12, NodeRole::kWorker, 1)};
    running.servers = {participant(1, NodeRole::kServer, 0)};
    running.plan = *d.make_plan({.epoch = kEpoch,
                                 .workers = {"10.0.0.11:4711", "10.0.0.12:4711"},
                                 .servers = {"10.0.0.1:4711"},
                                 .calibration = {},
                                 .keep = {}});
    running.plan_basis = "not calibrated";
    running.completed = completed;
    running.loss = 1.5;
    running.test = TestResult{.iteration = 2, .loss = 0.5, .accuracy = 0.75};
    running.model_stored = model_stored;
    running.age = at(60);
    if (change) change(running);
    job_ = JobRun::resume({}, d, std::move(running), at(100), actions_);
  }
  std::optional<LackingReports> back(std::uint64_t id, std::uint32_t index, Iteration oldest = 0,
                                     Epoch epoch = kEpoch, Iteration next = 0) {
    actions_.clear();
    return job_->on_rejoin(
        {.node = NodeId(id), .epoch = epoch, .index = index, .oldest = oldest, .next = next},
        actions_);
  }
  JobActions report(std::uint64_t id, Iteration iteration) {
    return job_->on_iteration(NodeId(id), kEpoch, iteration, 1.0, at(101));
  }
  JobActions lose(std::uint64_t id, NodeRole role) {
    return job_->on_departure(
        {.node = participant(id, role, 0).node, .reason = "did not come back"}, at(110));
  }

  std::unique_ptr<JobRun> job_;
  JobActions actions_;
};

TEST_F(JobResumeTest, GoesOnWhereTheEarlierOneStopped) {
  resume();
  EXPECT_EQ(job_->state(), JobState::kRunning);
  const JobProgress progress = job_->progress(at(101));
  EXPECT_EQ(progress.completed, 2);
  EXPECT_EQ(progress.loss, 1.5);
  EXPECT_EQ(progress.test->accuracy, 0.75);
  EXPECT_EQ(progress.training_seconds, 61.0);
  EXPECT_EQ(progress.training_from, job_->view().run.first_iteration)
      << "it is the time of this epoch";
  EXPECT_EQ(job_->view().run.plan_basis, "not calibrated");
  EXPECT_THAT(only<CountRefusal>(report(11, 1)), SizeIs(1)) << "metrics.jsonl has it";
  EXPECT_THAT(report(11, 2), IsEmpty());
  const auto lines = only<AppendMetrics>(report(12, 2));
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0].line, HasSubstr("\"iteration\":2,"));
  const TestPart part{.loss_sum = 1.0, .correct = 1, .samples = 2};
  EXPECT_THAT(only<CountRefusal>(job_->on_test(NodeId(11), kEpoch, 2, part, at(102))), SizeIs(1));
  EXPECT_THAT(job_->on_test(NodeId(11), kEpoch, 4, part, at(102)), IsEmpty());
  EXPECT_THAT(only<AppendMetrics>(job_->on_test(NodeId(12), kEpoch, 4, part, at(102))), SizeIs(1));
}

TEST_F(JobResumeTest, IterationsToldInABurstHaveTheSpeedAtWhichTheyWereMade) {
  resume(0, false, [](RunningJob& running) { running.age = at(20); });  // it began at 80 s
  const auto rate_of = [this](Iteration iteration, double made) {
    const Nanoseconds age = at(101) - at(made);
    job_->on_iteration(NodeId(11), kEpoch, iteration, 1.0, at(101), age);
    const auto lines = only<AppendMetrics>(
        job_->on_iteration(NodeId(12), kEpoch, iteration, 1.0, at(101), age + at(0.5)));
    return lines.empty() ? -1.0
                         : nlohmann::json::parse(lines.at(0).line)["images_per_s"].get<double>();
  };
  EXPECT_DOUBLE_EQ(rate_of(0, 84), 2 * 32 / 4.0);
  EXPECT_DOUBLE_EQ(rate_of(1, 88), 2 * 32 / 4.0);
  EXPECT_DOUBLE_EQ(rate_of(2, 90), 2 * 32 / 3.0) << "two of them in 6 s";
  EXPECT_DOUBLE_EQ(job_->progress(at(101)).iterated_seconds, 10.0);
}

// They show who was at work while nobody heard it. Another worker may have died since.
TEST_F(JobResumeTest, ReportsThatWereKeptDoNotShowThatTheJobAdvancesNow) {
  resume();
  ASSERT_TRUE(back(11, 0, 0, kEpoch, 4).has_value());
  for (const Iteration iteration : {2, 3}) {
    EXPECT_THAT(report(11, iteration), IsEmpty());
    EXPECT_EQ(job_->view().training.advances(), 0u) << iteration;
  }
  EXPECT_THAT(report(11, 4), IsEmpty());
  EXPECT_EQ(job_->view().training.advances(), 1u);
  report(12, 2);
  EXPECT_EQ(job_->view().training.advances(), 1u) << "it is no news";
}

/// The question may have been lost with the stream.
TEST_F(JobResumeTest, WhoComesBackHearsAgainOfACheckpointThatIsAwaited) {
  resume();
  ASSERT_TRUE(back(1, 0).has_value());
  EXPECT_THAT(only<SendSave>(actions_), IsEmpty());
  ASSERT_TRUE(job_->save_checkpoint(at(101)).ok());
  const auto version = job_->view().checkpoints.asked_for();
  ASSERT_TRUE(version);
  for (const auto& [id, index] : {std::pair{1, 0}, {12, 1}}) {
    ASSERT_TRUE(back(static_cast<std::uint64_t>(id), static_cast<std::uint32_t>(index)));
    ASSERT_THAT(only<SendSave>(actions_), SizeIs(1));
    EXPECT_EQ(only<SendSave>(actions_)[0].node, NodeId(static_cast<std::uint64_t>(id)));
    EXPECT_EQ(only<SendSave>(actions_)[0].iteration, *version);
    EXPECT_FALSE(only<SendSave>(actions_)[0].held);
  }
  job_->on_checkpoint_report(
      NodeId(1), kEpoch,
      {.server = ServerIndex(0), .who = "server 0", .iteration = *version, .stored = true}, 0,
      at(102));
  ASSERT_TRUE(back(12, 1).has_value());
  EXPECT_THAT(only<SendSave>(actions_), IsEmpty()) << "all parts are there";
}

TEST_F(JobResumeTest, EndsAsEver) {
  resume();
  for (Iteration i = 2; i < kIterations; ++i) {
    report(11, i);
    report(12, i);
  }
  job_->on_model_stored(kEpoch, at(103));
  job_->on_finished(NodeId(12), kEpoch, at(103));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_THAT(only<SendStop>(job_->on_finished(NodeId(11), kEpoch, at(103))), SizeIs(3));
  EXPECT_EQ(job_->state(), JobState::kDone);
}

TEST_F(JobResumeTest, TellsEverybodyWhatIsLacking) {
  resume();
  report(12, 2);
  report(12, 3);
  const auto first = back(11, 0);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->iteration, 2);
  EXPECT_EQ(first->test, 3);
  EXPECT_THAT(only<SendStart>(actions_), SizeIs(1));
  EXPECT_EQ(back(12, 1)->iteration, 4);
  EXPECT_TRUE(back(1, 0));
  EXPECT_THAT(actions_, IsEmpty()) << "a server needs no Start";
}

TEST_F(JobResumeTest, OnlyThoseWithTheVeryPartAreTakenBack) {
  resume();
  EXPECT_FALSE(back(13, 0)) << "a stranger";
  EXPECT_FALSE(back(11, 1)) << "another rank";
  EXPECT_FALSE(back(11, 0, 0, Epoch(6))) << "another epoch";
  EXPECT_FALSE(back(11, 0, -1));
  EXPECT_FALSE(back(11, 0, kIterations + 1));
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_TRUE(job_->has_part(NodeId(11)));
  job_->fail("over", at(102));
  EXPECT_FALSE(back(11, 0));
  EXPECT_FALSE(job_->has_part(NodeId(11)));
}

TEST_F(JobResumeTest, WhatIsLostForEverIsSaidAndSkipped) {
  resume();
  report(12, 2);
  report(12, 3);
  const auto lacks = back(11, 0, 3);
  ASSERT_TRUE(lacks);
  EXPECT_EQ(lacks->iteration, 3);
  ASSERT_THAT(only<LogLine>(actions_), SizeIs(1));
  EXPECT_THAT(only<LogLine>(actions_)[0].text, HasSubstr("nothing of iterations 2 to 2"));
  const auto lines = only<AppendMetrics>(report(11, 3));
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0].line, HasSubstr("\"iteration\":3,"));
}

TEST_F(JobResumeTest, WhoDoesNotComeBackIsLost) {
  resume();
  lose(12, NodeRole::kWorker);
  EXPECT_EQ(job_->state(), JobState::kHalting) << "it recovers";
}

TEST_F(JobResumeTest, AnEpochThatWasOverIsLeftByAllAtOnce) {
  resume();
  const JobActions actions = job_->on_outdated("worker 0 is in epoch 4", at(101));
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  EXPECT_THAT(only<SendStop>(actions), IsEmpty()) << "nobody is in it";
  lose(12, NodeRole::kWorker);
  EXPECT_EQ(job_->view().recovery.reason(), "worker 0 is in epoch 4")
      << "they leave because of that";
  for (const std::uint64_t id : {1, 11, 12}) EXPECT_FALSE(job_->has_part(NodeId(id)));
  EXPECT_EQ(job_->view().recovery.recoveries(), 1);
}

TEST_F(JobResumeTest, WhatTheEarlierOneHaltedIsRecovered) {
  resume();
  const JobActions actions = job_->on_halted(NodeId(11), kEpoch, {1, 2}, at(101));
  EXPECT_EQ(job_->state(), JobState::kHalting);
  EXPECT_THAT(only<SendHalt>(actions), SizeIs(3)) << "who has not heard of it, does now";
  EXPECT_THAT(job_->on_halted(NodeId(11), kEpoch, {1, 2}, at(101)), IsEmpty()) << "asked twice";
  job_->on_halted(NodeId(12), kEpoch, {1, 2}, at(101));
  const auto saves = only<SendSave>(job_->on_halted(NodeId(1), kEpoch, {1, 2}, at(101)));
  ASSERT_THAT(saves, SizeIs(3));
  EXPECT_EQ(saves[0].iteration, 2);
}

TEST_F(JobResumeTest, NodesThatHadHeardOfTheEndAreNotMissed) {
  resume(kIterations, /*model_stored=*/true);
  EXPECT_EQ(job_->state(), JobState::kRunning) << "they may have a last test to tell";
  lose(1, NodeRole::kServer);
  lose(11, NodeRole::kWorker);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  lose(12, NodeRole::kWorker);
  EXPECT_EQ(job_->state(), JobState::kDone);
}

// ---- in the middle of a recovery ----

class RecoveryResumeTest : public JobResumeTest {
 protected:
  void resume_recovery(bool stopped) {
    resume(2, false, [stopped](RunningJob& running) {
      running.recovering_from = "worker 1 was lost";
      running.workers[1].state = ParticipantState::kLost;
      running.stopped = stopped;
    });
  }
  JobActions halted(std::uint64_t id, Iteration oldest, Iteration newest) {
    return job_->on_halted(NodeId(id), kEpoch, {.oldest = oldest, .newest = newest}, at(102));
  }
};

TEST_F(RecoveryResumeTest, WhatNodesHoldIsSavedAllTheSame) {
  resume_recovery(/*stopped=*/false);
  EXPECT_STREQ(job_state_name(job_->state()), "recovering");
  EXPECT_THAT(job_->progress(at(101)).message, HasSubstr("worker 1 was lost"));
  EXPECT_FALSE(back(12, 1)) << "it was given up";
  ASSERT_TRUE(back(11, 0));
  EXPECT_THAT(only<SendHalt>(actions_), SizeIs(1)) << "it may not have heard it";
  EXPECT_THAT(only<SendStart>(actions_), IsEmpty());
  EXPECT_THAT(halted(11, 1, 2), IsEmpty());
  ASSERT_TRUE(back(1, 0));
  const auto saves = only<SendSave>(halted(1, 2, 3));
  ASSERT_THAT(saves, SizeIs(2));
  EXPECT_EQ(saves[0].iteration, 2);
  EXPECT_THAT(saves[0].lost, ::testing::ElementsAre(WorkerRank(1)));
}

TEST_F(RecoveryResumeTest, WhoSaysThatItHasHaltedBeginsTheRecoveryAgain) {
  resume();
  ASSERT_TRUE(back(11, 0));
  const JobActions actions = halted(11, 1, 2);
  EXPECT_EQ(job_->state(), JobState::kHalting);
  EXPECT_THAT(only<SendHalt>(actions), SizeIs(3));
  EXPECT_THAT(only<CountRefusal>(actions), IsEmpty());
}

TEST_F(RecoveryResumeTest, AfterTheEndOfTheEpochNewNodesBeginTheNextAtOnce) {
  resume_recovery(/*stopped=*/true);
  EXPECT_STREQ(job_state_name(job_->state()), "recovering");
  for (const std::uint64_t id : {11, 12, 1}) EXPECT_FALSE(job_->has_part(NodeId(id)));
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(101))), IsEmpty()) << "nobody is here";
  EXPECT_THAT(job_->progress(at(101)).message, HasSubstr("waits for worker 0"));
  const std::vector<NodeInfo> members = {participant(21, NodeRole::kServer, 0).node,
                                         participant(22, NodeRole::kWorker, 0).node,
                                         participant(23, NodeRole::kWorker, 0).node};
  EXPECT_THAT(only<TakeEpoch>(job_->on_members(members, at(102))), SizeIs(1));
  const JobActions begun = job_->on_epoch(9, at(102));
  EXPECT_EQ(job_->epoch(), Epoch(9));
  ASSERT_THAT(only<RollBackMetrics>(begun), SizeIs(1));
  EXPECT_EQ(only<RollBackMetrics>(begun)[0].iteration, 0) << "there is no checkpoint";
  EXPECT_EQ(job_->view().roster.workers[1].node.id, NodeId(23));
  for (const std::uint64_t id : {21, 22, 23}) job_->on_ready(NodeId(id), Epoch(9), at(103));
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

/// The earlier coordinator's epoch is over, and its nodes come again.
class CourseTest : public JobResumeTest {
 protected:
  /// What the next epoch begins from, when metrics.jsonl has two iterations.
  std::optional<SnapshotId> beginning(const std::vector<SnapshotId>& committed,
                                      const std::vector<SnapshotId>& abandoned,
                                      Iteration first_iteration = 0) {
    std::vector<CheckpointManifest> manifests;
    for (const SnapshotId snapshot : committed) {
      CheckpointManifest& manifest = manifests.emplace_back();
      manifest.snapshot = snapshot;
      manifest.job_id = "digits-7";
      manifest.stores = {kStore};
      manifest.workers = 2;
      manifest.pieces = {{.layer = std::nullopt, .holder = ServerIndex(0)}};
    }
    resume(
        2, false,
        [&](RunningJob& running) {
          running.first_iteration = first_iteration;
          running.recovering_from = "worker 1 was lost";
          running.stopped = true;
          running.abandoned = abandoned;
        },
        std::move(manifests));
    std::vector<NodeInfo> members = {participant(21, NodeRole::kServer, 0).node,
                                     participant(22, NodeRole::kWorker, 0).node,
                                     participant(23, NodeRole::kWorker, 0).node};
    members[0].store_identity = kStore;
    // The place of the server that is lost waits for its data; then any will do.
    job_->on_members(members, at(102));
    job_->tick(at(102) + std::chrono::minutes(1));
    actions_ = job_->on_epoch(9, at(163));
    EXPECT_EQ(job_->epoch(), Epoch(9));
    if (job_->view().source.manifest() == nullptr) return std::nullopt;
    return job_->view().source.manifest()->snapshot;
  }
  std::vector<std::string> alarms() const {
    std::vector<std::string> texts;
    for (const LogLine& line : only<LogLine>(actions_)) {
      if (line.kind == LogLine::Kind::kAlarm) texts.push_back(line.text);
    }
    return texts;
  }

  const std::string kStore = std::string(32, 'a');
};

TEST_F(JobResumeTest, WhatItTrainsOnStaysKnown) {
  const DataIdentity data{.train = {.samples = 60000, .digest = 7}, .test = std::nullopt};
  resume(2, false, [&data](RunningJob& running) { running.data = data; });
  EXPECT_EQ(job_->view().data.identity(), data);
  resume();
  EXPECT_EQ(job_->view().data.identity(), std::nullopt) << "an earlier version wrote the record";
}

/// It was preparing an epoch from an older checkpoint than the one that the last had begun from.
TEST_F(CourseTest, MetricsThatWereTakenBackDecideWhereItGoesOn) {
  const SnapshotId two = snapshot_id(Epoch(5), 2), three = snapshot_id(Epoch(5), 3);
  EXPECT_EQ(beginning({two, three}, {}, 3), two) << "nobody has the lines of the third iteration";
}

TEST_F(CourseTest, WhatTheRunHasLeftStaysLeftWhenAnotherCoordinatorGoesOn) {
  const SnapshotId one = snapshot_id(Epoch(5), 1), two = snapshot_id(Epoch(5), 2);
  EXPECT_EQ(beginning({one, two}, {}, 2), two);
  EXPECT_EQ(beginning({one, two}, {two}, 2), one) << "nobody else remembers it";
  EXPECT_THAT(job_->view().checkpoints.abandoned(), ::testing::Contains(two));
  EXPECT_EQ(beginning({two}, {two}, 2), std::nullopt);
  EXPECT_THAT(alarms(), IsEmpty());
}

TEST_F(CourseTest, LinesOfMetricsAreNotWorthTheTraining) {
  const SnapshotId early = snapshot_id(kEpoch, 1), late = snapshot_id(kEpoch, 4);
  EXPECT_EQ(beginning({early, late}, {}), early) << "the metrics stay whole";
  EXPECT_THAT(alarms(), IsEmpty());
  EXPECT_EQ(beginning({snapshot_id(kEpoch, 3), late}, {}), late);
  ASSERT_THAT(alarms(), SizeIs(1));
  EXPECT_THAT(alarms()[0], HasSubstr("nothing of iterations 2 to 3"));
}

TEST_F(JobResumeTest, WithoutTheModelTheyAreMissed) {
  resume(kIterations);
  lose(11, NodeRole::kWorker);
  EXPECT_EQ(job_->state(), JobState::kHalting) << "it recovers";
}

}  // namespace
}  // namespace poseidon::job_run_resume_test
