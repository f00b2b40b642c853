#include "coordinator/job/job_run.h"

#include <limits>

#include "coordinator/job/tests/job_run_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::job_run_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- choosing nodes ----

TEST_F(JobRunTest, WaitsAndSaysForWhom) {
  job_.emplace(JobRunOptions{}, description(4, 2), at(0));
  EXPECT_THAT(job_->on_members(cluster(3, 1), at(1)), IsEmpty());
  EXPECT_EQ(job_->state(), JobState::kWaiting);
  EXPECT_THAT(job_->progress(at(1)).message,
              HasSubstr("3 of 4 workers and 1 of 2 servers are here"));
}

TEST_F(JobRunTest, AnEpochThatIsUsedUpIsLeftOut) {
  job_.emplace(JobRunOptions{}, description(2, 2), at(0));
  std::vector<NodeInfo> members = cluster(2, 2);
  members.front().newest_epoch = kEpoch;
  EXPECT_THAT(only<TakeEpoch>(job_->on_members(members, at(1))), SizeIs(1));
  EXPECT_THAT(job_->on_members(members, at(1)), IsEmpty()) << "asked for once";
  EXPECT_EQ(job_->state(), JobState::kWaiting);
  actions_ = job_->on_epoch(12, at(2));
  EXPECT_EQ(job_->state(), JobState::kPreparingServers);
  EXPECT_EQ(job_->epoch(), Epoch(12));
  EXPECT_EQ(job_->view().run.plan->epoch, Epoch(12));
  EXPECT_THAT(only<SendAssignment>(actions_), SizeIs(2));

  job_.emplace(JobRunOptions{}, description(2, 2), at(0));
  job_->on_members(members, at(1));
  job_->on_epoch(absl::ResourceExhaustedError("/state: no space left on device"), at(2));
  EXPECT_EQ(job_->state(), JobState::kWaiting);
  EXPECT_THAT(job_->progress(at(2)).message, HasSubstr("no space left"));
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(4))), IsEmpty());
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(6))), SizeIs(1));
  EXPECT_THAT(only<SendAssignment>(job_->on_epoch(12, at(6))), SizeIs(2));
  EXPECT_THAT(job_->on_epoch(13, at(7)), IsEmpty()) << "nobody asked for it";
  EXPECT_EQ(job_->epoch(), Epoch(12));

  job_.emplace(JobRunOptions{}, description(2, 2), at(0));
  for (NodeInfo& member : members) member.newest_epoch = Epoch(kEpoch.value() - 1);
  EXPECT_THAT(only<SendAssignment>(job_->on_members(members, at(1))), SizeIs(2));
}

TEST_F(JobRunTest, WaitingHasADeadlineThatNamesWhatIsMissing) {
  job_.emplace(JobRunOptions{}, description(4, 2), at(0));
  job_->on_members(cluster(1, 2), at(1));
  EXPECT_THAT(job_->tick(at(120)), IsEmpty());
  actions_ = job_->tick(at(120.5));
  expect_failed(actions_, "1 of 4 workers and 2 of 2 servers are here", 0);
  EXPECT_THAT(job_->tick(at(500)), IsEmpty()) << "a job ends once";
}

TEST_F(JobRunTest, TakesTheFirstThatFitAndAssignsServersFirst) {
  job_.emplace(JobRunOptions{}, description(2, 1), at(0));
  actions_ = job_->on_members(cluster(3, 2), at(1));
  EXPECT_EQ(job_->state(), JobState::kPreparingServers);
  const auto assigned = only<SendAssignment>(actions_);
  ASSERT_THAT(assigned, SizeIs(1));
  EXPECT_EQ(assigned[0].node, NodeId(1));
  EXPECT_EQ(assigned[0].index, 0u);
  ASSERT_THAT(job_->view().roster.workers, SizeIs(2));
  EXPECT_EQ(job_->view().roster.workers[0].node.id, NodeId(11));
  EXPECT_EQ(job_->view().roster.workers[1].node.id, NodeId(12));
  const auto files = only<WriteFile>(actions_);
  ASSERT_THAT(files, SizeIs(1));
  EXPECT_EQ(files[0].name, "plan.json");
  EXPECT_EQ(nlohmann::json::parse(files[0].contents)["workers"], 2);
  EXPECT_EQ(job_->view().run.plan->server_addresses, std::vector<std::string>{"10.0.0.1:4711"});
}

TEST_F(JobRunTest, WithoutNumbersTakesAllUpToMaxWorkers) {
  JobDescription d = description(0, 0);
  d.min_workers = 2;
  d.max_workers = 3;
  job_.emplace(JobRunOptions{}, d, at(0));
  EXPECT_THAT(job_->on_members(cluster(1, 3), at(1)), IsEmpty());
  job_->on_members(cluster(5, 3), at(2));
  EXPECT_EQ(job_->state(), JobState::kPreparingServers);
  EXPECT_THAT(job_->view().roster.workers, SizeIs(3));
  EXPECT_THAT(job_->view().roster.servers, SizeIs(3));
}

TEST_F(JobRunTest, APlanThatCannotBeMadeFailsTheJob) {
  JobDescription d = description(1, 1);
  d.make_plan = [](const auto&) -> absl::StatusOr<Plan> {
    return absl::InvalidArgumentError("no parameters");
  };
  job_.emplace(JobRunOptions{}, d, at(0));
  actions_ = job_->on_members(cluster(1, 1), at(1));
  expect_failed(actions_, "no parameters", 0);
}

// ---- preparing ----

TEST_F(JobRunTest, WorkersAreAssignedWhenAllServersAreReady) {
  begin();
  EXPECT_THAT(job_->on_ready(NodeId(2), kEpoch, at(2)), IsEmpty());
  actions_ = job_->on_ready(NodeId(1), kEpoch, at(3));
  EXPECT_EQ(job_->state(), JobState::kPreparingWorkers);
  const auto assigned = only<SendAssignment>(actions_);
  ASSERT_THAT(assigned, SizeIs(2));
  EXPECT_EQ(assigned[1].node, NodeId(12));
  EXPECT_EQ(assigned[1].index, 1u);
}

TEST_F(JobRunTest, StartWhenAllWorkersAreReady) {
  run();
  EXPECT_EQ(job_->state(), JobState::kRunning);
  const auto starts = only<SendStart>(actions_);
  ASSERT_THAT(starts, SizeIs(2));
  EXPECT_EQ(starts[0].node, NodeId(11));
  EXPECT_EQ(job_->progress(at(9)).training_seconds, 4.0);
}

TEST_F(JobRunTest, ReadyIsRefusedFromStrangersStaleEpochsTwiceAndOutOfTurn) {
  begin();
  expect_refused(job_->on_ready(NodeId(99), kEpoch, at(2)), Refusal::kNotInJob);
  expect_refused(job_->on_ready(NodeId(1), Epoch(6), at(2)), Refusal::kStaleEpoch);
  expect_refused(job_->on_ready(NodeId(11), kEpoch, at(2)), Refusal::kWrongState);
  EXPECT_THAT(job_->on_ready(NodeId(1), kEpoch, at(2)), IsEmpty());
  expect_refused(job_->on_ready(NodeId(1), kEpoch, at(2)), Refusal::kDuplicate);
  EXPECT_EQ(job_->state(), JobState::kPreparingServers);
}

TEST_F(JobRunTest, MessagesBeforeAnybodyIsChosenAreRefused) {
  job_.emplace(JobRunOptions{}, description(2, 2), at(0));
  expect_refused(job_->on_ready(NodeId(11), kEpoch, at(1)), Refusal::kNotInJob);
  expect_refused(report(11, 0, 1.0, 1), Refusal::kNotInJob);
}

TEST_F(JobRunTest, PreparingHasADeadlineThatNamesWhoIsNotReady) {
  begin();
  job_->on_ready(NodeId(1), kEpoch, at(2));
  EXPECT_THAT(job_->tick(at(600)), IsEmpty());
  actions_ = job_->tick(at(602));
  expect_failed(actions_, "server 1 (10.0.0.2:4711)");

  prepare_servers();
  job_->on_ready(NodeId(12), kEpoch, at(4));
  EXPECT_THAT(job_->tick(at(602)), IsEmpty()) << "each preparing state has its own deadline";
  actions_ = job_->tick(at(604));
  expect_failed(actions_, "worker 0 (10.0.0.11:4711)");
}

// ---- running ----

TEST_F(JobRunTest, LossesAreCombinedInRankOrderWhateverOrderTheyArriveIn) {
  run();
  const double a = 0.1;
  const double b = 0.7;
  EXPECT_THAT(report(12, 0, b, 6), IsEmpty());
  EXPECT_THAT(report(12, 1, 5.0, 6.5), IsEmpty()) << "a fast worker may be ahead";
  actions_ = report(11, 0, a, 7);
  const auto lines = only<AppendMetrics>(actions_);
  ASSERT_THAT(lines, SizeIs(1));
  const auto json = nlohmann::json::parse(lines[0].line);
  EXPECT_EQ(json.size(), 4u);
  EXPECT_EQ(json["iteration"], 0);
  EXPECT_EQ(json["loss"].get<double>(), (a + b) / 2.0);
  EXPECT_EQ(json["learning_rate"], 0.5);
  EXPECT_EQ(json["images_per_s"].get<double>(), 64.0 / 2.0) << "64 images in 2 s since the start";
  EXPECT_EQ(job_->progress(at(7)).completed, 1);
  EXPECT_EQ(*job_->progress(at(7)).loss, (a + b) / 2.0);
}

TEST_F(JobRunTest, EveryIterationHasItsLineOnceAndInOrder) {
  run();
  std::vector<int> seen;
  for (Iteration i = 0; i < 3; ++i) report(12, i, 1.0, 6);
  for (Iteration i = 0; i < 3; ++i) {
    for (const auto& line : only<AppendMetrics>(report(11, i, 1.0, 7))) {
      seen.push_back(nlohmann::json::parse(line.line)["iteration"]);
    }
  }
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2}));
}

TEST_F(JobRunTest, ReportsThatDoNotFitAreRefusedAndChangeNothing) {
  prepare_servers();
  expect_refused(report(11, 0, 1.0, 4), Refusal::kWrongState);
  run();
  expect_refused(report(99, 0, 1.0, 6), Refusal::kNotInJob);
  expect_refused(report(1, 0, 1.0, 6), Refusal::kWrongState);
  expect_refused(job_->on_iteration(NodeId(11), Epoch(8), 0, 1.0, at(6)), Refusal::kStaleEpoch);
  expect_refused(report(11, 1, 1.0, 6), Refusal::kWrongIteration);
  expect_refused(report(11, -1, 1.0, 6), Refusal::kDuplicate);
  report(11, 0, 1.0, 6);
  expect_refused(report(11, 0, 2.0, 6), Refusal::kDuplicate);
  report(11, 1, 1.0, 6);
  report(11, 2, 1.0, 6);
  expect_refused(report(11, 3, 1.0, 6), Refusal::kWrongIteration);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  const auto lines = only<AppendMetrics>(report(12, 0, 3.0, 7));
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(nlohmann::json::parse(lines[0].line)["loss"], 2.0) << "the first report counted";
}

TEST_F(JobRunTest, ALossThatIsNoNumberFailsTheJob) {
  for (const double loss :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    run();
    report(11, 0, 1.0, 6);
    actions_ = report(11, 1, loss, 7);
    expect_failed(actions_, "the loss of iteration 1 on worker 0 (10.0.0.11:4711)");
  }
}

TEST_F(JobRunTest, TestsAreCombinedOverTheSamplesOfAllRanks) {
  run();
  EXPECT_THAT(
      job_->on_test(NodeId(12), kEpoch, 2, {.loss_sum = 6.0, .correct = 1, .samples = 2}, at(6)),
      IsEmpty());
  const auto lines = only<AppendMetrics>(
      job_->on_test(NodeId(11), kEpoch, 2, {.loss_sum = 2.0, .correct = 5, .samples = 6}, at(6)));
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(nlohmann::json::parse(lines[0].line),
            (nlohmann::json{{"iteration", 2}, {"test_loss", 1.0}, {"test_accuracy", 0.75}}));
  EXPECT_EQ(job_->progress(at(6)).test->accuracy, 0.75);
}

TEST_F(JobRunTest, TestsThatDoNotFitAreRefused) {
  run();
  const TestPart good{.loss_sum = 1.0, .correct = 1, .samples = 2};
  expect_refused(job_->on_test(NodeId(11), kEpoch, 4, good, at(6)), Refusal::kMalformed);
  expect_refused(job_->on_test(NodeId(11), kEpoch, -1, good, at(6)), Refusal::kMalformed);
  expect_refused(job_->on_test(NodeId(11), kEpoch, 1, {1.0, 3, 2}, at(6)), Refusal::kMalformed);
  expect_refused(job_->on_test(NodeId(11), kEpoch, 1, {1.0, 3, UINT64_MAX}, at(6)),
                 Refusal::kMalformed);
  expect_refused(job_->on_test(NodeId(11), Epoch(1), 1, good, at(6)), Refusal::kStaleEpoch);
  EXPECT_THAT(job_->on_test(NodeId(11), kEpoch, 1, good, at(6)), IsEmpty());
  expect_refused(job_->on_test(NodeId(11), kEpoch, 1, good, at(6)), Refusal::kDuplicate);
  expect_refused(job_->on_test(NodeId(11), kEpoch, 0, good, at(6)), Refusal::kDuplicate);
  actions_ = job_->on_test(NodeId(12), kEpoch, 1, {std::nan(""), 1, 2}, at(6));
  expect_failed(actions_, "test loss after 1 iterations on worker 1");
}

TEST_F(JobRunTest, SilenceOfAllWorkersFailsTheJobAndNamesTheSlowest) {
  run();
  report(12, 0, 1.0, 6);
  EXPECT_THAT(job_->tick(at(6 + 1800)), IsEmpty());
  actions_ = job_->tick(at(6 + 1801));
  expect_failed(actions_, "the slowest is worker 0 (10.0.0.11:4711)");
}

// A test may take hours, and one iteration of many parts.
TEST_F(JobRunTest, BatchesAreProgressAsLongAsTheyGoOn) {
  run();
  for (std::uint64_t batches = 1; batches <= 5; ++batches) {
    job_->on_batches(NodeId(11), batches, at(6 + 1000.0 * static_cast<double>(batches)));
    EXPECT_THAT(job_->tick(at(6 + 1000.0 * static_cast<double>(batches))), IsEmpty());
  }
  job_->on_batches(NodeId(11), 5, at(6500));
  job_->on_batches(NodeId(77), 6, at(6500));
  EXPECT_THAT(job_->tick(at(5006 + 1800)), IsEmpty());
  actions_ = job_->tick(at(5006 + 1801));
  expect_failed(actions_, "no report for 1801 s");
}

TEST_F(JobRunTest, SaysThatItTests) {
  JobDescription d = description(2, 1);
  d.test_every = 2;
  job_.emplace(JobRunOptions{}, d, at(0));
  job_->on_members(cluster(2, 1), at(0));
  for (const std::uint64_t id : {1, 11, 12}) job_->on_ready(NodeId(id), kEpoch, at(1));
  const auto message = [this] { return job_->progress(at(10)).message; };
  const auto both = [this](Iteration iteration) {
    for (const std::uint64_t id : {11, 12}) report(id, iteration, 1.0, 2);
  };
  const TestPart part{.loss_sum = 1.0, .correct = 1, .samples = 2};
  EXPECT_EQ(message(), "");
  both(0);
  EXPECT_EQ(message(), "");
  both(1);
  EXPECT_EQ(message(), "tests the network as of iteration 2");
  job_->on_test(NodeId(11), kEpoch, 2, part, at(5));
  EXPECT_EQ(message(), "tests the network as of iteration 2") << "the other one does";
  EXPECT_EQ(job_->progress(at(10)).iterated_seconds, 1.0);
  EXPECT_EQ(job_->progress(at(10)).training_seconds, 9.0);
  job_->on_test(NodeId(12), kEpoch, 2, part, at(6));
  EXPECT_EQ(message(), "");
  both(2);
  EXPECT_EQ(message(), "tests the network as of iteration 3") << "at the end always";
}

TEST_F(JobRunTest, AWorkerTooFarBehindFailsTheJob) {
  JobDescription d = description(2, 1);
  d.iterations = IterationCombiner::kMaxAhead + 10;
  job_.emplace(JobRunOptions{}, d, at(0));
  job_->on_members(cluster(2, 1), at(0));
  for (const std::uint64_t id : {1, 11, 12}) job_->on_ready(NodeId(id), kEpoch, at(1));
  for (Iteration i = 0; i < IterationCombiner::kMaxAhead; ++i) report(12, i, 1.0, 2);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  actions_ = report(12, IterationCombiner::kMaxAhead, 1.0, 2);
  expect_failed(actions_, "worker 0 (10.0.0.11:4711) has reported 0 iterations", 3);
}

// ---- the end ----

TEST_F(JobRunTest, DoneWhenAllHaveFinishedAndTheModelIsStored) {
  run();
  report_all();
  EXPECT_TRUE(job_->view().ending.accepts_model(kEpoch).ok());
  EXPECT_THAT(only<SendStop>(job_->on_finished(NodeId(12), kEpoch, at(9))), IsEmpty());
  EXPECT_THAT(only<SendStop>(job_->on_model_stored(kEpoch, at(9.5))), IsEmpty());
  actions_ = job_->on_finished(NodeId(11), kEpoch, at(10));
  EXPECT_EQ(job_->state(), JobState::kDone);
  const auto stops = only<SendStop>(actions_);
  ASSERT_THAT(stops, SizeIs(4));
  for (const SendStop& stop : stops) EXPECT_TRUE(stop.succeeded);
  EXPECT_EQ(job_->progress(at(100)).training_seconds, 5.0) << "stands still after the end";
  EXPECT_EQ(job_->view().ending.accepts_model(kEpoch).code(), absl::StatusCode::kAborted);
}

TEST_F(JobRunTest, TheModelMayComeLast) {
  run();
  report_all();
  job_->on_finished(NodeId(11), kEpoch, at(9));
  job_->on_finished(NodeId(12), kEpoch, at(9));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_THAT(job_->progress(at(9)).message, HasSubstr("waits for the model"));
  actions_ = job_->on_model_stored(kEpoch, at(10));
  EXPECT_EQ(job_->state(), JobState::kDone);
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(4));
}

/// A server seals an earlier checkpoint, say.
TEST_F(JobRunTest, WhatWasOnItsWayAtTheEndIsHarmless) {
  run();
  report_all();
  job_->on_model_stored(kEpoch, at(9));
  job_->on_finished(NodeId(11), kEpoch, at(9));
  job_->on_finished(NodeId(12), kEpoch, at(9));
  ASSERT_EQ(job_->state(), JobState::kDone);
  expect_refused(
      job_->on_checkpoint_report(NodeId(1), kEpoch, {.iteration = 2, .stored = true}, 1, at(10)),
      Refusal::kLate);
  EXPECT_TRUE(is_harmless(Refusal::kLate));
  EXPECT_FALSE(is_harmless(Refusal::kWrongState));
}

TEST_F(JobRunTest, AModelThatNeverComesFailsTheJob) {
  run();
  report_all();
  job_->on_finished(NodeId(11), kEpoch, at(9));
  job_->on_finished(NodeId(12), kEpoch, at(9));
  EXPECT_THAT(job_->tick(at(609)), IsEmpty());
  actions_ = job_->tick(at(610));
  expect_failed(actions_, "worker 0 (10.0.0.11:4711) sent no model");
}

TEST_F(JobRunTest, FinishedTooEarlyFailsTheJob) {
  run();
  report(11, 0, 1.0, 6);
  actions_ = job_->on_finished(NodeId(11), kEpoch, at(7));
  expect_failed(actions_, "reported 1 of 3 iterations");
}

TEST_F(JobRunTest, FinishedTwiceIsRefused) {
  run();
  report_all();
  job_->on_finished(NodeId(11), kEpoch, at(9));
  expect_refused(job_->on_finished(NodeId(11), kEpoch, at(9)), Refusal::kWrongState);
  expect_refused(report(11, 3, 1.0, 9), Refusal::kWrongState);
}

TEST_F(JobRunTest, AFailedNodeFailsTheJobWithItsReason) {
  run();
  actions_ = job_->on_failed(NodeId(2), kEpoch, "out of memory", FailureKind::kJob, at(6));
  expect_failed(actions_, "server 1 (10.0.0.2:4711) failed: out of memory");
  expect_refused(job_->on_failed(NodeId(1), kEpoch, "too", FailureKind::kJob, at(6)),
                 Refusal::kLate);
  expect_refused(report(11, 0, 1.0, 6), Refusal::kLate);
}

TEST_F(JobRunTest, AFailureOfAnOlderEpochIsRefused) {
  run();
  expect_refused(job_->on_failed(NodeId(2), Epoch(6), "old", FailureKind::kJob, at(6)),
                 Refusal::kStaleEpoch);
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

TEST_F(JobRunTest, LosingAStrangerChangesNothing) {
  run();
  EXPECT_THAT(job_->on_departure({.node = node(77, NodeRole::kWorker), .reason = "left"}, at(6)),
              IsEmpty());
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

TEST_F(JobRunTest, AFinishedWorkerMayGoButNotWorkerZeroWithItsModel) {
  run();
  report_all();
  job_->on_finished(NodeId(12), kEpoch, at(9));
  actions_ = job_->on_departure({.node = node(12, NodeRole::kWorker), .reason = "left"}, at(9));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  job_->on_finished(NodeId(11), kEpoch, at(9));
  actions_ = job_->on_departure({.node = node(11, NodeRole::kWorker), .reason = "left"}, at(9));
  EXPECT_EQ(job_->state(), JobState::kHalting) << "the model was worker 0's to give";

  run();
  report_all();
  job_->on_finished(NodeId(12), kEpoch, at(9));
  job_->on_departure({.node = node(12, NodeRole::kWorker), .reason = "left"}, at(9));
  job_->on_finished(NodeId(11), kEpoch, at(9));
  actions_ = job_->on_model_stored(kEpoch, at(9));
  EXPECT_EQ(job_->state(), JobState::kDone);
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(3));
}

TEST_F(JobRunTest, AModelOfAnotherEpochIsRefused) {
  run();
  EXPECT_THAT(std::string(job_->view().ending.accepts_model(Epoch(6)).message()),
              HasSubstr("epoch 6"));
  EXPECT_THAT(job_->on_model_stored(Epoch(6), at(6)), IsEmpty());
  prepare_servers();
  EXPECT_FALSE(job_->view().ending.accepts_model(kEpoch).ok()) << "nothing is trained yet";
}

TEST_F(JobRunTest, FailFromOutsideEndsItOnce) {
  run();
  actions_ = job_->fail("the disk is full", at(6));
  expect_failed(actions_, "the disk is full");
  EXPECT_THAT(job_->fail("again", at(7)), IsEmpty());
  EXPECT_THAT(job_->on_members(cluster(9, 9), at(8)), IsEmpty());
}

}  // namespace
}  // namespace poseidon::job_run_test
