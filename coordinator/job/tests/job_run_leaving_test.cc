// Nodes that say goodbye or are drained, and how long those that come wait.

#include "coordinator/job/tests/job_run_test_support.h"

namespace poseidon::job_run_leaving_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LeavingTest : public RecoveryTest {
 protected:
  void SetUp() override {
    JobDescription d = elastic(60);
    d.min_workers = 1;
    begin(d);
    train(0, 3);
  }
  /// Says goodbye, or is drained.
  void leaves(std::uint64_t id, double now) {
    for (NodeInfo& node : members_) node.is_leaving |= node.id == NodeId(id);
    actions_ = members_now(now);
  }
  void halt_all(Iteration version, double now) {
    for (const std::uint64_t id : {101, 102, 1, 2}) halt(id, version, version, now);
  }
};

TEST_F(LeavingTest, NobodyWaitsForAWorkerThatSaidGoodbye) {
  leaves(102, 4);
  EXPECT_THAT(only<SendHalt>(actions_), SizeIs(4)) << "it gives what it holds, too";
  EXPECT_TRUE(needs_node(*job_, NodeId(102)));
  halt_all(3, 4.1);
  commit(3, 4.2);
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(4));
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1)) << "at once";
  EXPECT_FALSE(needs_node(*job_, NodeId(102))) << "it may go";
  job_->on_epoch(9, at(4.3));
  ASSERT_THAT(job_->view().roster.workers, SizeIs(1));
  EXPECT_EQ(job_->view().roster.workers[0].node.id, NodeId(101));
  EXPECT_EQ(job_->view().run.first_iteration, 3) << "no iteration is made again";
  EXPECT_EQ(job_->view().recovery.recoveries(), 0) << "nobody is lost";
  EXPECT_EQ(job_->counts().of(EpochEnd::kNodeLeaves), 1u);
  get_ready(5);
  lose(102, 6);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(job_->view().recovery.recoveries(), 0);
}

TEST_F(LeavingTest, ASpareWorkerTakesItsPlace) {
  leaves(102, 4);
  join(node(103), 4.05);
  halt_all(3, 4.1);
  commit(3, 4.2);
  job_->on_epoch(9, at(4.3));
  ASSERT_THAT(job_->view().roster.workers, SizeIs(2));
  EXPECT_EQ(job_->view().roster.workers[1].node.id, NodeId(103));
}

TEST_F(LeavingTest, TheJobWaitsForAnotherWhereItNeedsAsMany) {
  JobDescription d = description();
  d.min_workers = 2;
  begin(d);
  train(0, 3);
  leaves(102, 4);
  halt_all(3, 4.1);
  commit(3, 4.2);
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  EXPECT_THAT(only<TakeEpoch>(actions_), IsEmpty());
  EXPECT_FALSE(needs_node(*job_, NodeId(102))) << "what it had is saved";
  EXPECT_THAT(job_->progress(at(5)).message, HasSubstr("waits for worker 1"));
  join(node(103), 50);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
}

TEST_F(LeavingTest, WhileNodesGetReadyTheNextEpochDoesWithoutIt) {
  lose_the_second_worker();
  join(node(103), 5);
  job_->on_epoch(9, at(5));
  ASSERT_EQ(job_->state(), JobState::kPreparingServers);
  leaves(103, 6);
  EXPECT_FALSE(needs_node(*job_, NodeId(103)));
  ASSERT_THAT(only<TakeEpoch>(actions_), SizeIs(1)) << "at once";
  job_->on_epoch(10, at(6.1));
  EXPECT_THAT(job_->view().roster.workers, SizeIs(1));
}

TEST_F(LeavingTest, AServerStaysUntilACheckpointDoesWithoutIt) {
  leaves(2, 4);
  halt_all(3, 4.1);
  commit(3, 4.2);
  job_->on_epoch(9, at(4.3));
  ASSERT_THAT(job_->view().roster.servers, SizeIs(1));
  EXPECT_EQ(job_->view().roster.servers[0].node.id, NodeId(1));
  EXPECT_TRUE(needs_node(*job_, NodeId(2))) << "the others read from it";
  get_ready(5);
  ASSERT_EQ(job_->state(), JobState::kRunning);
  actions_ = job_->tick(at(5.1));
  ASSERT_THAT(only<SendSave>(actions_), SizeIs(3));
  const Iteration asked = only<SendSave>(actions_)[0].iteration;
  EXPECT_THAT(only<SendSave>(job_->tick(at(20))), IsEmpty()) << "once";
  train(3, asked, 20);
  commit(asked, 21);
  EXPECT_FALSE(needs_node(*job_, NodeId(2)));
  EXPECT_EQ(job_->state(), JobState::kRunning) << "and training goes on";
}

TEST_F(LeavingTest, AWorkerThatHasFinishedGoesWithoutMore) {
  train(3, kIterations);
  job_->on_finished(NodeId(102), job_->epoch(), at(5));
  leaves(102, 6);
  EXPECT_THAT(only<SendHalt>(actions_), SizeIs(0));
  EXPECT_FALSE(needs_node(*job_, NodeId(102)));
  EXPECT_TRUE(needs_node(*job_, NodeId(101)));
}

TEST_F(LeavingTest, WhoLeavesGetsNoPlace) {
  members_ = {node(1), node(2), node(101), node(102)};
  members_[3].is_leaving = true;
  JobDescription d = description();
  job_.emplace(JobRunOptions{}, d, at(0));
  members_now(1);
  EXPECT_EQ(job_->state(), JobState::kWaiting);
  EXPECT_THAT(job_->progress(at(1)).message, HasSubstr("1 of 2 workers"));
  join(node(103), 2);
  EXPECT_EQ(job_->view().roster.workers[1].node.id, NodeId(103));
}

// ---- those that come ----

TEST_F(RecoveryTest, NewcomersAreTakenInAtTheNextCheckpoint) {
  JobDescription d = elastic(60);
  d.checkpoints.every = 4;
  begin(d);
  train(0, 3);
  join(node(103), 4);
  EXPECT_EQ(job_->view().change.newcomer_note(at(4)), "joins in 2 s, or at the next checkpoint");
  EXPECT_EQ(job_->view().change.newcomer_note(at(5.5)), "joins in 1 s, or at the next checkpoint");
  train(3, 5);
  commit(4, 5);
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(4)) << "before the two seconds are over";
  job_->on_epoch(9, at(5));
  EXPECT_THAT(job_->view().roster.workers, SizeIs(3));
}

TEST_F(RecoveryTest, WhereChangesTakeLongTheyAreRare) {
  begin(elastic(60));
  train(0, 3);
  lose(102, 4);
  for (const std::uint64_t id : {101, 1, 2}) halt(id, 3, 3, 4.1);
  commit(3, 4.2);
  join(node(103), 5);
  job_->on_epoch(9, at(5));
  get_ready(15);  // ten seconds
  join(node(104), 16);
  EXPECT_THAT(only<SendSave>(job_->tick(at(104))), IsEmpty());
  EXPECT_EQ(job_->view().change.newcomer_note(at(104)), "joins in 1 s, or at the next checkpoint");
  EXPECT_THAT(only<SendSave>(job_->tick(at(106))), SizeIs(4)) << "a tenth of the time at most";
}

TEST_F(RecoveryTest, AGrowthThatSavesLessThanItCostsIsNotMade) {
  begin(elastic(60));
  train(0, 3);
  lose(102, 4);
  for (const std::uint64_t id : {101, 1, 2}) halt(id, 3, 3, 4.1);
  commit(3, 4.2);
  join(node(103), 5);
  job_->on_epoch(9, at(5));
  get_ready(105);
  for (Iteration i = 3; i < 6; ++i) train(i, i + 1, 105 + 0.1 * static_cast<double>(i));
  join(node(104), 106);  // the few that are left take less than the 100 s of the last change
  EXPECT_THAT(only<LogLine>(actions_), IsEmpty());
  EXPECT_THAT(job_->view().change.newcomer_note(at(106)), HasSubstr("stands by"));
}

}  // namespace
}  // namespace poseidon::job_run_leaving_test
