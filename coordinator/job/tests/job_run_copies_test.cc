// Two copies of each checkpoint, and servers that go for good and come.

#include "coordinator/job/tests/job_run_test_support.h"

namespace poseidon::job_run_copies_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> alarms(const JobActions& actions) {
  std::vector<std::string> texts;
  for (const LogLine& line : only<LogLine>(actions)) {
    if (line.kind == LogLine::Kind::kAlarm) texts.push_back(line.text);
  }
  return texts;
}

class CopiesTest : public RecoveryTest {
 protected:
  void SetUp() override {
    JobDescription d = description();
    d.servers = 0;
    d.checkpoints.replicas = 2;
    d.checkpoints.every = 3;
    d.iterations = 100;
    begin(d);
  }
  /// Checkpoint 3 is committed, server 2 is gone for good, and the job goes on with server 1.
  void lose_the_second_server() {
    train(0, 4);
    commit(3, 3);
    lose(2, 4);
    actions_ = job_->tick(at(4 + seconds(job_->description().replace_timeout) + 1));
    ASSERT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
    job_->on_epoch(9, at(40));
    ASSERT_THAT(job_->view().roster.servers, SizeIs(1));
    get_ready(41);
    ASSERT_EQ(job_->state(), JobState::kRunning);
  }
  /// A change for the server that came: its checkpoint at 6, and the next epoch.
  void take_in(std::uint64_t epoch) {
    actions_ = job_->tick(at(52.1));
    ASSERT_THAT(only<SendSave>(actions_), SizeIs(3));
    EXPECT_FALSE(only<SendSave>(actions_)[0].held) << "training goes on meanwhile";
    const Iteration asked = only<SendSave>(actions_)[0].iteration;
    train(3, asked, 53);
    commit(asked, 54);
    ASSERT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
    job_->on_epoch(epoch, at(55));
    get_ready(56);
    ASSERT_EQ(job_->state(), JobState::kRunning);
  }
  std::int64_t missing() const { return job_->view().saving.copies().missing(); }
};

TEST_F(CopiesTest, AServerThatIsLostForGoodIsAnAlarm) {
  EXPECT_THAT(alarms(job_->tick(at(2.5))), IsEmpty());
  lose_the_second_server();
  EXPECT_THAT(alarms(job_->tick(at(42))),
              ElementsAre(HasSubstr("checkpoints have 1 of 2 copies (checkpoint.replicas): 1 "
                                    "server is missing; start 1 more poseidon-server")));
  EXPECT_EQ(missing(), 1);
  EXPECT_THAT(job_->view().saving.copies().text(), HasSubstr("1 of 2 copies"));
  JobActions later = job_->tick(at(43));
  EXPECT_THAT(alarms(later), IsEmpty()) << "told once";
  EXPECT_THAT(only<SendSave>(later), IsEmpty()) << "another checkpoint would have no more copies";
}

TEST_F(CopiesTest, AServerThatComesIsUsedAndGetsCopiesAtOnce) {
  lose_the_second_server();
  job_->tick(at(42));
  join(node(3), 50);
  EXPECT_THAT(only<LogLine>(actions_)[0].text, HasSubstr("1 more server came"));
  EXPECT_THAT(only<SendSave>(job_->tick(at(51.9))), IsEmpty()) << "others may come with it";
  take_in(10);
  ASSERT_THAT(job_->view().roster.servers, SizeIs(2));
  EXPECT_EQ(job_->view().roster.servers[1].node.id, NodeId(3));
  EXPECT_EQ(job_->view().roster.servers[1].index, 1u);
  EXPECT_EQ(job_->counts().of(EpochEnd::kMoreServers), 1u);
  EXPECT_EQ(job_->view().recovery.recoveries(), 1) << "the loss";
  std::vector<bool> holds(2);
  for (const PlanChunk& chunk : job_->view().run.plan->chunks) holds[chunk.server.value()] = true;
  EXPECT_THAT(holds, ElementsAre(true, true));

  // The checkpoint from which it went on has one copy: the next one does not wait its turn.
  actions_ = job_->tick(at(57));
  ASSERT_THAT(only<SendSave>(actions_), SizeIs(4));
  EXPECT_EQ(missing(), 1);
  EXPECT_THAT(job_->view().saving.copies().text(), HasSubstr("the newest checkpoint has 1 of 2"));
  const Iteration asked = only<SendSave>(actions_)[0].iteration;
  train(job_->view().run.first_iteration, asked, 58);
  commit(asked, 59);
  actions_ = job_->tick(at(60));
  EXPECT_EQ(missing(), 0);
  EXPECT_EQ(job_->view().saving.copies().text(), "");
  EXPECT_THAT(only<LogLine>(actions_),
              ElementsAre(::testing::Field(&LogLine::text, HasSubstr("has all copies again"))));
  for (const CheckpointPiece& piece : job_->view().checkpoints.newest()->pieces) {
    EXPECT_TRUE(piece.second.has_value());
  }
}

TEST_F(CopiesTest, AServerThatIsGoneAgainIsNotWaitedFor) {
  lose_the_second_server();
  join(node(3), 50);
  actions_ = job_->tick(at(52.1));
  const Iteration asked = only<SendSave>(actions_)[0].iteration;
  lose(3, 53);
  train(3, asked, 53);
  commit(asked, 54);
  EXPECT_THAT(only<TakeEpoch>(actions_), IsEmpty());
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

TEST_F(CopiesTest, AServerThatCannotTakePartIsGoneOnWithout) {
  lose_the_second_server();
  join(node(3), 50);
  actions_ = job_->tick(at(52.1));
  const Iteration asked = only<SendSave>(actions_)[0].iteration;
  train(3, asked, 53);
  commit(asked, 54);
  job_->on_epoch(10, at(55));
  job_->on_failed(NodeId(3), job_->epoch(), "its disk is full", FailureKind::kJob, at(56));
  EXPECT_NE(job_->state(), JobState::kFailed);
  actions_ = job_->tick(at(54 + seconds(job_->description().replace_timeout) + 1));
  ASSERT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
  job_->on_epoch(11, at(90));
  get_ready(91);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_THAT(job_->view().roster.servers, SizeIs(1));
  job_->tick(at(92));
  EXPECT_EQ(missing(), 1);
}

TEST_F(CopiesTest, ANewServerInTheLostOnesPlaceGetsCopiesAtOnce) {
  train(0, 4);
  commit(3, 3);
  lose(2, 4);
  join(node(3), 5);  // with another store
  actions_ = job_->tick(at(4 + seconds(job_->description().replace_timeout) + 1));
  job_->on_epoch(9, at(40));
  get_ready(41);
  ASSERT_THAT(job_->view().roster.servers, SizeIs(2));
  actions_ = job_->tick(at(42));
  EXPECT_THAT(alarms(actions_), IsEmpty()) << "nobody has to do anything";
  EXPECT_EQ(missing(), 1);
  ASSERT_THAT(only<SendSave>(actions_), SizeIs(4));
}

TEST_F(CopiesTest, ASpareServerStaysOne) {
  join(node(3), 4);
  EXPECT_THAT(only<LogLine>(actions_), IsEmpty());
  EXPECT_THAT(only<SendSave>(job_->tick(at(10))), IsEmpty());
}

TEST_F(RecoveryTest, AServerIsTakenBackWhateverTheCopies) {
  train(0, 2);
  lose(2, 4);
  actions_ = job_->tick(at(4 + seconds(job_->description().replace_timeout) + 1));
  ASSERT_THAT(only<TakeEpoch>(actions_), SizeIs(1)) << "from the beginning";
  job_->on_epoch(9, at(40));
  get_ready(41);
  ASSERT_THAT(job_->view().roster.servers, SizeIs(1));
  EXPECT_EQ(job_->view().saving.copies().missing(), 0) << "the job asks for one";
  join(node(2), 50);
  EXPECT_THAT(only<SendSave>(job_->tick(at(52.1))), SizeIs(3));
}

}  // namespace
}  // namespace poseidon::job_run_copies_test
