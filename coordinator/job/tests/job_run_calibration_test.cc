// A job that measures its nodes before it makes its plan, and what it makes of better plans later.

#include <limits>
#include <vector>

#include "coordinator/job/tests/job_run_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::job_run_calibration_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class CalibratingTest : public JobRunTest {
 protected:
  void SetUp() override {
    JobDescription d = description(2, 1);
    d.why_no_calibration = [](const auto&, const auto&) { return ""; };
    d.iterations = 1000;
    d.consider_replan = [this](const Plan&, const std::vector<LayerTimes>&, ReplanState) {
      return decision_;
    };
    job_.emplace(JobRunOptions{}, d, at(0));
    actions_ = job_->on_members(cluster(2, 1), at(1));
  }
  JobActions answer(NodeId from, double forward_s = 0.01) {
    CalibrationAnswer answer;
    answer.step = step_;
    answer.layers = {{"fc", forward_s, 0.02}};
    answer.device_ops_per_s = 1e10;
    answer.server_sum_bytes_per_s = 1e9;
    answer.send_bytes_per_s = answer.receive_bytes_per_s = 1e8;
    answer.latency_s = 1e-4;
    return job_->on_calibration(from, kEpoch, answer, at(2));
  }
  void measure() {
    while (job_->state() == JobState::kCalibrating) {
      const auto tasks = only<SendCalibrate>(actions_);
      ASSERT_THAT(tasks, Not(IsEmpty()));
      step_ = tasks[0].task.step;
      for (const SendCalibrate& task : tasks) actions_ = answer(task.task.node);
    }
  }
  std::uint32_t step_ = 1;
  ReplanDecision decision_;
};

TEST_F(CalibratingTest, ThePlanIsMadeWithWhatWasMeasured) {
  EXPECT_EQ(job_->state(), JobState::kCalibrating);
  EXPECT_STREQ(job_state_name(job_->state()), "preparing");
  EXPECT_THAT(only<SendCalibrate>(actions_), SizeIs(2));
  EXPECT_THAT(only<SendAssignment>(actions_), IsEmpty());
  EXPECT_THAT(job_->progress(at(1)).message, HasSubstr("worker 1"));
  EXPECT_EQ(job_->view().run.plan, nullptr);
  measure();
  EXPECT_EQ(job_->state(), JobState::kPreparingServers);
  EXPECT_THAT(only<SendAssignment>(actions_), SizeIs(1));
  EXPECT_TRUE(job_->view().run.plan->calibration->measured);
  EXPECT_TRUE(job_->view().run.plan->prediction.has_value());
  EXPECT_THAT(job_->view().run.plan_basis, HasSubstr("measured"));
  const auto files = only<WriteFile>(actions_);
  ASSERT_THAT(files, SizeIs(1));
  const auto plan = nlohmann::json::parse(files[0].contents);
  EXPECT_TRUE(plan["calibration"]["measured"]);
  EXPECT_GT(plan["predicted"]["iteration_seconds"], 0.0);
  EXPECT_TRUE(plan["layers"][0].contains("sync_seconds"));
}

TEST_F(CalibratingTest, ASilentNodeLeavesThePlanToBytesAndIsNamed) {
  answer(NodeId(12));
  actions_ = job_->tick(at(302));
  EXPECT_EQ(job_->state(), JobState::kPreparingServers);
  EXPECT_FALSE(job_->view().run.plan->calibration.has_value());
  EXPECT_THAT(job_->view().run.plan_basis, HasSubstr("worker 0 (10.0.0.11:4711"));
  EXPECT_THAT(only<LogLine>(actions_)[0].text, HasSubstr("worker 0 (10.0.0.11:4711"));
}

TEST_F(CalibratingTest, ALiarLeavesThePlanToBytesAndIsCounted) {
  actions_ = answer(NodeId(11), std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(only<CountRefusal>(actions_), SizeIs(1));
  EXPECT_EQ(job_->state(), JobState::kPreparingServers);
  EXPECT_FALSE(job_->view().run.plan->calibration.has_value());
  expect_refused(answer(NodeId(12)), Refusal::kWrongState);
}

TEST_F(CalibratingTest, WhatDoesNotBelongHereIsRefused) {
  expect_refused(job_->on_ready(NodeId(11), kEpoch, at(2)), Refusal::kWrongState);
  expect_refused(job_->on_ready(NodeId(1), kEpoch, at(2)), Refusal::kWrongState);
  expect_refused(job_->on_calibration(NodeId(11), Epoch(6), {}, at(2)), Refusal::kStaleEpoch);
  expect_refused(job_->on_calibration(NodeId(77), kEpoch, {}, at(2)), Refusal::kNotInJob);
  expect_refused(
      job_->on_checkpoint_report(NodeId(1), kEpoch, {.iteration = 2, .stored = true}, 1, at(2)),
      Refusal::kWrongState);
  EXPECT_EQ(job_->state(), JobState::kCalibrating);
}

TEST_F(CalibratingTest, ALostNodeIsReplacedAndTheMeasuringBegunAnew) {
  actions_ =
      job_->on_departure({.node = node(12, NodeRole::kWorker), .reason = "was silent"}, at(2));
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(2)) << "they measure no longer";
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  EXPECT_THAT(job_->progress(at(2)).message, HasSubstr("waits for worker 1"));
}

TEST_F(CalibratingTest, ABetterPlanIsWrittenDownAndSaidOnce) {
  measure();
  const std::vector<LayerTimes> times = {{"fc", 0.1, 0.2}};
  EXPECT_THAT(job_->on_measured_times(times, at(3)), IsEmpty()) << "nothing runs yet";
  for (const std::uint64_t id : {1, 11, 12}) job_->on_ready(NodeId(id), kEpoch, at(3));
  ASSERT_EQ(job_->state(), JobState::kRunning);
  EXPECT_THAT(job_->on_measured_times(times, at(4)), IsEmpty());
  EXPECT_EQ(job_->view().run.recommendation, "");
  decision_.plan = *job_->view().run.plan;
  Scheme& scheme = decision_.plan->layers[0].scheme;
  scheme = scheme == Scheme::kPs ? Scheme::kSfb : Scheme::kPs;
  decision_.now_s = 0.02;
  decision_.better_s = 0.01;
  actions_ = job_->on_measured_times(times, at(5));
  const auto files = only<WriteFile>(actions_);
  ASSERT_THAT(files, SizeIs(1));
  EXPECT_EQ(files[0].name, "plan.recommended.json");
  EXPECT_THAT(only<LogLine>(actions_), SizeIs(1));
  EXPECT_THAT(job_->view().run.recommendation, HasSubstr("fc by "));
  EXPECT_THAT(job_->view().run.recommendation, HasSubstr("10 ms instead of 20 ms"));
  EXPECT_THAT(job_->on_measured_times(times, at(6)), IsEmpty());

  // The job changes to it from a checkpoint for which training does not wait.
  actions_ = job_->tick(at(7));
  ASSERT_THAT(only<SendSave>(actions_), SizeIs(3));
  EXPECT_FALSE(only<SendSave>(actions_)[0].held);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  actions_ =
      job_->on_checkpoint_report(NodeId(1), kEpoch, {.iteration = 2, .stored = true}, 1, at(8));
  ASSERT_THAT(only<WriteManifest>(actions_), SizeIs(1));
  actions_ = job_->on_manifest_written(snapshot_id(kEpoch, 2), absl::OkStatus(), at(8));
  EXPECT_THAT(only<SendStop>(actions_), IsEmpty()) << "the metrics do not reach it yet";
  EXPECT_THAT(only<SendStop>(job_->tick(at(8))), IsEmpty());
  for (const Iteration i : {0, 1}) {
    for (const std::uint64_t id : {11, 12}) {
      job_->on_iteration(NodeId(id), kEpoch, i, 1.0, at(8));
    }
  }
  actions_ = job_->tick(at(8));
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(3));
  ASSERT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
  actions_ = job_->on_epoch(8, at(8));
  EXPECT_EQ(job_->view().run.plan->layers[0].scheme, scheme);
  EXPECT_EQ(job_->view().run.plan->epoch, Epoch(8));
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 2);
  EXPECT_TRUE(job_->view().run.plan->calibration.has_value());
  EXPECT_EQ(job_->view().run.recommendation, "");
  EXPECT_EQ(job_->view().recovery.recoveries(), 0);
}

/// The job's memory of earlier runs is what the planner gets, and what training adds to.
class RememberingTest : public CalibratingTest {
 protected:
  void SetUp() override {
    CalibratingTest::SetUp();
    begin({});
  }
  void begin(const PlanMemory& memory) {
    JobDescription d = job_->description();
    d.plans = {.key = "abc", .earlier = memory};
    d.make_plan = [this, make = job_->description().make_plan](JobDescription::PlanRequest wanted) {
      asked_ = wanted.earlier;
      return make(std::move(wanted));
    };
    job_.emplace(JobRunOptions{}, d, at(0));
    actions_ = job_->on_members(cluster(2, 1), at(1));
  }
  std::vector<KeepPlans> train() {
    actions_.clear();
    for (const std::uint64_t id : {1, 11, 12}) {
      actions_ = job_->on_ready(NodeId(id), kEpoch, at(3));
    }
    EXPECT_EQ(job_->state(), JobState::kRunning);
    return only<KeepPlans>(actions_);
  }
  std::string machines() const { return machines_digest(job_->view().roster); }

  std::optional<EarlierPlan> asked_;
};

TEST_F(RememberingTest, WhatWasMeasuredIsKeptOnceItTrains) {
  measure();
  EXPECT_EQ(asked_, std::nullopt);
  EXPECT_THAT(job_->view().run.plan_basis, Not(HasSubstr("last run")));
  EXPECT_THAT(only<KeepPlans>(actions_), IsEmpty()) << "it has not trained";
  const std::vector<KeepPlans> kept = train();
  ASSERT_THAT(kept, SizeIs(1));
  const absl::StatusOr<PlanMemory> memory = PlanMemory::from_json(kept[0].contents, "plans");
  ASSERT_TRUE(memory.ok()) << memory.status();
  const EarlierPlan* const plan = memory->find(machines());
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->job_id, job_->description().id);
  EXPECT_EQ(plan->schemes.at("fc"), job_->view().run.plan->layers[0].scheme);
}

TEST_F(RememberingTest, TheNextRunIsPlannedWithItAndSaysSo) {
  measure();
  PlanMemory memory;
  EarlierPlan before = earlier_plan(*job_->view().run.plan, "digits-5");
  memory.remember(machines(), before);
  begin(memory);
  measure();
  EXPECT_EQ(asked_, before);
  EXPECT_THAT(job_->view().run.plan_basis,
              HasSubstr("; with the schemes of the plan of digits-5, the last run of this job"));
  ASSERT_THAT(train(), SizeIs(1)) << "the last run is this one now";
}

TEST_F(RememberingTest, AnotherPlanSaysWhichLineGivesTheEarlierOne) {
  measure();
  PlanMemory memory;
  EarlierPlan before = earlier_plan(*job_->view().run.plan, "digits-5");
  Scheme& scheme = before.schemes.at("fc");
  scheme = scheme == Scheme::kPs ? Scheme::kSfb : Scheme::kPs;
  const std::string line =
      absl::StrCat("\"sync\": {\"scheme\":\"", std::string(scheme_name(scheme)), "\"}");
  memory.remember(machines(), before);
  begin(memory);
  measure();  // and this planner never takes an earlier plan
  EXPECT_THAT(job_->view().run.plan_basis, HasSubstr("differs from the plan of digits-5"));
  EXPECT_THAT(job_->view().run.plan_basis, HasSubstr(line));
  EXPECT_THAT(only<LogLine>(actions_)[0].text, HasSubstr(line));
}

TEST_F(RememberingTest, OfOtherMachinesIsNoGuide) {
  PlanMemory memory;
  memory.remember("others", {.job_id = "digits-5", .schemes = {{"fc", Scheme::kSfb}}});
  begin(memory);
  measure();
  EXPECT_EQ(asked_, std::nullopt);
}

TEST_F(RememberingTest, WhatIsPlannedByBytesIsNotKept) {
  answer(NodeId(12));
  actions_ = job_->tick(at(302));
  ASSERT_EQ(job_->state(), JobState::kPreparingServers);
  EXPECT_THAT(train(), IsEmpty());
}

TEST_F(CalibratingTest, AJobWithoutAKeyKeepsNoPlans) {
  measure();
  for (const std::uint64_t id : {1, 11, 12}) actions_ = job_->on_ready(NodeId(id), kEpoch, at(3));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_THAT(only<KeepPlans>(actions_), IsEmpty());
}

TEST_F(CalibratingTest, AJobThatDoesNotWantItKeepsItsPlan) {
  JobDescription d = job_->description();
  d.plans.replan = false;
  job_.emplace(JobRunOptions{}, d, at(0));
  actions_ = job_->on_members(cluster(2, 1), at(1));
  measure();
  for (const std::uint64_t id : {1, 11, 12}) job_->on_ready(NodeId(id), kEpoch, at(3));
  decision_.plan = *job_->view().run.plan;
  actions_ = job_->on_measured_times({{"fc", 0.1, 0.2}}, at(5));
  EXPECT_THAT(only<WriteFile>(actions_), SizeIs(1)) << "recommended all the same";
  EXPECT_THAT(only<SendSave>(job_->tick(at(70))), IsEmpty());
}

}  // namespace
}  // namespace poseidon::job_run_calibration_test
