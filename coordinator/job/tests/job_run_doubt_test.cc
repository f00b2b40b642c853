// Newcomers that cannot read the checkpoint: whose word condemns it.

#include "coordinator/job/tests/job_run_test_support.h"

namespace poseidon::job_run_doubt_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// The second worker is lost, and 103, on a machine of its own, has taken its place. There are
/// checkpoints at 2 and 3.
class DoubtTest : public RecoveryTest {
 protected:
  void SetUp() override { replace_the_second_of(description()); }

  void replace_the_second_of(const JobDescription& d) {
    begin(d);
    train(0, 3);
    commit(2, 3);
    lose(102, 4);
    for (const std::uint64_t id : {101, 1, 2}) halt(id, 3, 3, 4.1);
    commit(3, 4.2);
    join(from_its_own(103), 5);
    begin_epoch(5);
  }
  static NodeInfo from_its_own(std::uint64_t id) {
    NodeInfo info = node(id);
    info.peer_host = "10.0.0." + std::to_string(id);
    return info;
  }
  void begin_epoch(double now) {
    ASSERT_THAT(only<TakeEpoch>(actions_), SizeIs(1)) << now;
    job_->on_epoch(job_->epoch().value() + 1, at(now));
    for (const Participant& p : job_->view().roster.servers)
      job_->on_ready(p.node.id, job_->epoch(), at(now));
  }
  void cannot_read(std::uint64_t id, double now) {
    actions_ = job_->on_failed(NodeId(id), job_->epoch(), "checkpoint 7-3: bits",
                               FailureKind::kCheckpoint, at(now));
  }
};

TEST_F(DoubtTest, ItsWordAloneCondemnsNothing) {
  cannot_read(103, 6);
  EXPECT_THAT(job_->view().recovery.reason(), HasSubstr("others have not tried"));
  EXPECT_EQ(job_->counts().of(EpochEnd::kCheckpointUnreadable), 0u);
  join(from_its_own(104), 7);
  begin_epoch(7);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 3) << "as if nobody had said anything";
  EXPECT_EQ(job_->view().roster.workers[1].node.id, NodeId(104))
      << "who has not failed comes first";
  get_ready(8);
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

TEST_F(DoubtTest, WhoTrainedBeforeIsBelieved) {
  cannot_read(101, 6);
  begin_epoch(6);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 2);
  EXPECT_EQ(job_->counts().of(EpochEnd::kCheckpointUnreadable), 1u);
}

TEST_F(DoubtTest, TwoAreBelieved) {
  cannot_read(103, 6);
  join(from_its_own(104), 7);
  begin_epoch(7);
  cannot_read(104, 8);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
  begin_epoch(8);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 2);
}

TEST_F(DoubtTest, WhoIsNeededIsBelievedTheSecondTime) {
  JobDescription two = description();
  two.min_workers = 2;
  replace_the_second_of(two);
  cannot_read(103, 6);
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(33))), IsEmpty()) << "another one may come";
  actions_ = job_->tick(at(34.1));
  begin_epoch(34.1);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 3);
  ASSERT_THAT(job_->view().roster.workers, SizeIs(2));
  EXPECT_EQ(job_->view().roster.workers[1].node.id, NodeId(103));
  cannot_read(103, 35);
  begin_epoch(35);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 2);
  get_ready(36);
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

/// A spare on its machine has no better memory.
TEST_F(DoubtTest, SparesOfItsMachineAreNobodyElse) {
  JobDescription two = description();
  two.min_workers = 2;
  replace_the_second_of(two);
  cannot_read(103, 6);
  NodeInfo spare = node(104);
  spare.peer_host = "10.0.0.103";
  join(spare, 7);
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(33))), IsEmpty());
  actions_ = job_->tick(at(34.1));
  begin_epoch(34.1);
  ASSERT_THAT(job_->view().roster.workers, SizeIs(2));
  cannot_read(job_->view().roster.workers[1].node.id.value(), 35);
  actions_ = job_->tick(at(46));
  EXPECT_EQ(job_->counts().of(EpochEnd::kCheckpointUnreadable), 1u);
}

TEST_F(DoubtTest, WhoIsHeardWhenNobodyIsWaitedForAnyLongerIsBelieved) {
  JobDescription two = description();
  two.min_workers = 2;
  replace_the_second_of(two);
  cannot_read(103, 650);
  EXPECT_EQ(job_->counts().of(EpochEnd::kCheckpointUnreadable), 1u);
  EXPECT_NE(job_->state(), JobState::kFailed);
}

TEST_F(DoubtTest, WhoTrainsAfterAllIsADoubterNoLonger) {
  JobDescription two = description();
  two.min_workers = 2;
  replace_the_second_of(two);
  cannot_read(103, 6);
  actions_ = job_->tick(at(34.1));
  begin_epoch(34.1);
  get_ready(35);
  train(3, 6, 36);
  lose(103, 40);
  for (const std::uint64_t id : {101, 1, 2}) halt(id, 6, 6, 40.1);
  commit(6, 40.2);
  NodeInfo again = node(105);
  again.peer_host = "10.0.0.103";
  join(again, 41);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
}

TEST_F(DoubtTest, WhoIsNotNeededIsNotBelieved) {
  begin(elastic(60));
  train(0, 3);
  commit(2, 3);
  join(from_its_own(103), 4);
  job_->tick(at(6.1));
  train(3, 6);
  commit(5, 7);
  begin_epoch(7);
  ASSERT_THAT(job_->view().roster.workers, SizeIs(3));
  cannot_read(103, 8);
  EXPECT_THAT(only<TakeEpoch>(actions_), IsEmpty());
  actions_ = job_->tick(at(37.1));
  begin_epoch(37.1);
  EXPECT_THAT(job_->view().roster.workers, SizeIs(2));
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 5);
  get_ready(38);
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

TEST_F(DoubtTest, AServerIsBelievedAboutItsOwnStore) {
  get_ready(6);
  lose(2, 7);
  join(node(4, 2), 8);  // with the second one's data directory
  begin_epoch(8);
  cannot_read(4, 9);
  begin_epoch(9);
  EXPECT_EQ(job_->view().source.manifest()->iteration(), 2);
}

}  // namespace
}  // namespace poseidon::job_run_doubt_test
