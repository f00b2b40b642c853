// Workers of one machine in the life of a job (Plan::leaders, coordinator/planning/local_groups.h):
// who gets which rank, what a recovery keeps, whom it blames.

#include "common/base/address.h"
#include "coordinator/job/tests/job_run_test_support.h"

namespace poseidon::job_run_groups_test {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

NodeInfo on(const std::string& machine, std::uint64_t id) {
  NodeInfo info = node(id);
  info.address = machine + ":" + std::to_string(4000 + id);
  return info;
}

/// Machines a and b with a server and two workers each, training: ranks 0 and 1 are nodes 101 and
/// 103 on b, 2 and 3 are 102 and 104 on a.
class GroupsTest : public RecoveryTest {
 protected:
  void SetUp() override {
    begin_with({on("a", 1), on("b", 2), on("b", 101), on("a", 102), on("b", 103), on("a", 104)});
  }
  void begin_with(std::vector<NodeInfo> members, std::uint32_t workers = 4) {
    JobDescription d = description();
    d.workers = workers;
    members_ = std::move(members);
    job_.emplace(JobRunOptions{}, d, at(0));
    job_->on_members(members_, at(1));
    get_ready(2);
    ASSERT_EQ(job_->state(), JobState::kRunning);
  }
  std::vector<std::uint64_t> ranks() const {
    std::vector<std::uint64_t> ids;
    for (const Participant& worker : job_->view().roster.workers)
      ids.push_back(worker.node.id.value());
    return ids;
  }
  std::vector<std::uint32_t> leaders() const {
    std::vector<std::uint32_t> leaders;
    for (const WorkerRank leader : job_->view().run.plan->leaders)
      leaders.push_back(leader.value());
    return leaders;
  }
  void halt_all(double now) {
    for (const auto* group : job_->view().roster.groups()) {
      for (const Participant& p : *group) {
        if (p.state != ParticipantState::kLost) halt(p.node.id.value(), 0, 0, now);
      }
    }
  }
};

TEST_F(GroupsTest, RanksStandTogetherByMachine) {
  EXPECT_THAT(ranks(), ElementsAre(101, 103, 102, 104));
  EXPECT_THAT(leaders(), ElementsAre(0, 0, 2, 2));
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(job_->view().roster.workers[rank].index, rank);
}

TEST_F(GroupsTest, OfMoreThanAreWantedTheFullestMachineIsTaken) {
  begin_with({on("a", 1), on("b", 2), on("a", 101), on("b", 102), on("b", 103), on("b", 104)}, 3);
  EXPECT_THAT(ranks(), ElementsAre(102, 103, 104)) << "whoever came first";
}

TEST_F(GroupsTest, AServerThatIsGoneChangesNoGroup) {
  begin_with({on("a", 1), on("b", 2), on("a", 101), on("a", 102), on("a", 103), on("a", 104)});
  EXPECT_THAT(leaders(), ElementsAre(0, 0, 0, 0));
  train(0, 3);
  lose(2, 4);
  halt_all(4);
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(34.1))), SizeIs(1));
  job_->on_epoch(9, at(34.2));
  ASSERT_EQ(job_->view().run.plan->servers(), 1U);
  EXPECT_THAT(leaders(), ElementsAre(0, 0, 0, 0)) << "planned anew there would be none";
}

TEST_F(GroupsTest, AReplacementFromTheSameMachineComesFirst) {
  join(on("a", 105), 3);
  join(on("b", 106), 3);
  lose(103, 4);
  halt_all(4);
  job_->on_epoch(9, at(5));
  EXPECT_THAT(ranks(), ElementsAre(101, 106, 102, 104));
  EXPECT_THAT(leaders(), ElementsAre(0, 0, 2, 2));
}

TEST_F(GroupsTest, OneFromElsewhereTakesTheSamePlaceInTheGroup) {
  lose(103, 4);
  halt_all(4);
  join(on("c", 105), 5);
  job_->on_epoch(9, at(5));
  EXPECT_THAT(ranks(), ElementsAre(101, 105, 102, 104));
  EXPECT_THAT(leaders(), ElementsAre(0, 0, 2, 2));
}

TEST_F(GroupsTest, WithAnotherNumberOfWorkersTheyAreGroupedAnew) {
  lose(103, 4);
  halt_all(4);
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(34.1))), SizeIs(1));
  job_->on_epoch(9, at(34.2));
  EXPECT_THAT(ranks(), ElementsAre(101, 102, 104));
  EXPECT_THAT(leaders(), ElementsAre(0, 1, 1));
}

TEST_F(GroupsTest, NobodyIsLeftOutForALeaderThatIsSilent) {
  train(0, 3);
  join(on("b", 106), 3);
  lose(103, 4);
  halt_all(4);
  job_->on_epoch(9, at(5));
  for (const std::uint64_t id : {1, 2, 102, 104}) {
    job_->on_ready(NodeId(id), job_->epoch(), at(6));
  }
  // 101 leads 106, which is new and waits for it.
  job_->tick(at(700));
  EXPECT_THAT(ranks(), ElementsAre(106, 102, 104)) << "101 has had all the time that there is";
}

TEST_F(GroupsTest, ALeaderIsNotDoneBeforeItsGroupIs) {
  train(0, kIterations);
  job_->on_finished(NodeId(102), job_->epoch(), at(5));
  lose(102, 6);
  EXPECT_NE(job_->state(), JobState::kRunning) << "104 may lack what comes through 102";
}

TEST_F(GroupsTest, ALeaderWhoseGroupIsDoneIsNotNeeded) {
  train(0, kIterations);
  for (const std::uint64_t id : {102, 104}) job_->on_finished(NodeId(id), job_->epoch(), at(5));
  lose(102, 6);
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

TEST_F(GroupsTest, AMachineThatIsDoneMayGo) {
  train(0, kIterations);
  for (const std::uint64_t id : {102, 104}) job_->on_finished(NodeId(id), job_->epoch(), at(5));
  lose(104, 6);
  lose(102, 6);
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

TEST_F(GroupsTest, ALeaderThatNobodyReachesIsLeftOut) {
  train(0, 3);
  join(on("c", 105), 3);
  lose(102, 4);  // rank 2, who leads 104
  halt_all(4);
  job_->on_epoch(9, at(5));
  ASSERT_THAT(ranks(), ElementsAre(101, 103, 105, 104));
  const auto unreachable = [this](double now) {
    job_->on_failed(NodeId(104), job_->epoch(), "the relay of worker 2 could not be reached",
                    FailureKind::kPeer, at(now), on("c", 105).address);
  };
  unreachable(6);
  job_->on_epoch(10, at(7));
  ASSERT_THAT(ranks(), ElementsAre(101, 103, 105, 104)) << "once may happen to anybody";
  NodeInfo another = on("a", 106);
  another.peer_host = "a";  // not what 105 is started on again and again
  join(another, 8);
  unreachable(9);
  job_->on_epoch(11, at(10));
  EXPECT_THAT(ranks(), ElementsAre(101, 103, 106, 104));
}

TEST_F(GroupsTest, ANewLeaderIsNotBlamedByOneOfAnotherGroup) {
  train(0, 3);
  join(on("c", 105), 3);
  lose(102, 4);  // rank 2, who leads 104
  halt_all(4);
  job_->on_epoch(9, at(5));
  for (std::uint64_t epoch = 10; epoch < 13; ++epoch) {
    job_->on_failed(NodeId(103), job_->epoch(), "the relay of worker 0 could not be reached",
                    FailureKind::kPeer, at(static_cast<double>(epoch)));
    job_->on_epoch(epoch, at(static_cast<double>(epoch)));
    ASSERT_THAT(ranks(), ElementsAre(101, 103, 105, 104)) << epoch;
  }
}

TEST_F(GroupsTest, TheSameAddressBehindTwoHostsIsNoMachine) {
  std::vector<NodeInfo> members = {on("a", 1), on("b", 2)};
  for (const std::uint64_t id : {101, 102, 103, 104}) {
    members.push_back(on("172.17.0.2", id));
    members.back().peer_host = id % 2 == 0 ? "10.0.0.2" : "10.0.0.3";
  }
  begin_with(members);
  EXPECT_THAT(ranks(), ElementsAre(101, 103, 102, 104));
  EXPECT_THAT(leaders(), ElementsAre(0, 0, 2, 2));
}

TEST_F(GroupsTest, ARestoredJobHasItsGroupsOnOneMachineEach) {
  train(0, 5);
  commit(5, 3);
  JobDescription d = description();
  d.workers = 4;
  d.epoch = Epoch(9);
  d.committed = {job_->view().checkpoints.committed().at(snapshot_id(Epoch(7), 5))};
  d.source = snapshot_id(Epoch(7), 5);
  // The fullest machine comes first, but pairs are what is wanted.
  members_ = {on("a", 1),   on("b", 2),   on("c", 101), on("c", 102), on("c", 103),
              on("a", 104), on("b", 105), on("a", 106), on("b", 107)};
  job_.emplace(JobRunOptions{}, d, at(0));
  job_->on_members(members_, at(1));
  ASSERT_THAT(job_->view().roster.workers, SizeIs(4));
  EXPECT_THAT(leaders(), ElementsAre(0, 0, 2, 2));
  for (const std::size_t leader : {0, 2}) {
    EXPECT_TRUE(same_machine(job_->view().roster.workers[leader].node.address,
                             job_->view().roster.workers[leader + 1].node.address));
  }
}

}  // namespace
}  // namespace poseidon::job_run_groups_test
