// Workers that come while a job trains, and those that come and cannot.

#include "coordinator/job/tests/job_run_test_support.h"

namespace poseidon::job_run_growth_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- changes ----

TEST_F(RecoveryTest, MoreWorkersAreTakenInFromACheckpoint) {
  begin(elastic(60));
  EXPECT_EQ(job_->view().run.elastic.batch_size, 30);
  train(0, 3);
  join(node(103), 4);
  EXPECT_THAT(only<LogLine>(actions_)[0].text, HasSubstr("1 more worker came"));
  EXPECT_THAT(only<SendSave>(job_->tick(at(5.9))), IsEmpty()) << "others may come with it";
  actions_ = job_->tick(at(6.1));
  ASSERT_THAT(only<SendSave>(actions_), SizeIs(4));
  EXPECT_FALSE(only<SendSave>(actions_)[0].held) << "training goes on meanwhile";
  EXPECT_EQ(only<SendSave>(actions_)[0].iteration, 5);
  train(3, 6);
  commit(5, 7);
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(4));
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
  actions_ = job_->on_epoch(9, at(7));
  EXPECT_EQ(only<RollBackMetrics>(actions_)[0].iteration, 5);
  ASSERT_THAT(job_->view().roster.workers, SizeIs(3));
  EXPECT_EQ(job_->view().roster.workers[2].node.id, NodeId(103));
  EXPECT_EQ(job_->view().run.elastic.batch_size, 20);
  EXPECT_EQ(job_->view().run.elastic.job_json, "with 3");
  EXPECT_EQ(job_->view().source.manifest()->samples, 5u * 60u) << "where the data goes on";
  EXPECT_EQ(job_->view().recovery.recoveries(), 0);
  EXPECT_EQ(job_->counts().of(EpochEnd::kMoreWorkers), 1u);
  get_ready(8);
  actions_ = {};
  for (const Participant& w : job_->view().roster.workers) {
    actions_ = job_->on_iteration(w.node.id, job_->epoch(), 5, 1.0, at(9));
  }
  EXPECT_THAT(only<AppendMetrics>(actions_)[0].line, HasSubstr("\"learning_rate\":1.0,"));
}

TEST_F(RecoveryTest, AGrowthThatCannotBeSavedChangesNothing) {
  begin(elastic(60));
  train(0, 3);
  join(node(103), 4);
  job_->tick(at(6.1));
  job_->on_checkpoint_report(NodeId(1), job_->epoch(), {.iteration = 5, .reason = "disk full"}, 1,
                             at(6.2));
  job_->tick(at(6.3));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_THAT(only<SendSave>(job_->tick(at(60))), IsEmpty()) << "not again and again";
  EXPECT_THAT(only<SendSave>(job_->tick(at(67))), SizeIs(4));
}

TEST_F(RecoveryTest, WhoComesNearTheEndIsNotTakenIn) {
  begin(elastic(60));
  train(0, kIterations - 4);
  join(node(103), 4);
  EXPECT_THAT(only<SendSave>(job_->tick(at(10))), IsEmpty());
  train(kIterations - 4, kIterations);
  for (const Participant& w : job_->view().roster.workers)
    job_->on_finished(w.node.id, job_->epoch(), at(11));
  job_->on_model_stored(job_->epoch(), at(11));
  EXPECT_EQ(job_->state(), JobState::kDone) << "there is no checkpoint to wait for";
}

class LateGrowthTest : public RecoveryTest {
 protected:
  /// A checkpoint at 5 is asked for, from which to go on with the new worker.
  void train_to_the_end_while_another_comes() {
    JobDescription d = elastic(60);
    d.checkpoints.every = kIterations;
    begin(d);
    train(0, 3);
    join(node(103), 4);
    job_->tick(at(6.1));
    train(3, kIterations);
  }
};

TEST_F(LateGrowthTest, ATrainedJobIsNotTrainedFurtherWithOthers) {
  train_to_the_end_while_another_comes();
  for (const Participant& w : job_->view().roster.workers)
    job_->on_finished(w.node.id, job_->epoch(), at(7));
  job_->on_model_stored(job_->epoch(), at(7));
  commit(5, 8);
  job_->tick(at(8.1));
  EXPECT_EQ(job_->state(), JobState::kRunning) << "its last checkpoint is on its way";
  commit(kIterations, 9);
  EXPECT_EQ(job_->state(), JobState::kDone);
}

TEST_F(LateGrowthTest, ARunThatIsAllButOverDoesNotGoBackForOthers) {
  train_to_the_end_while_another_comes();
  commit(5, 7);  // late: only the model and a test are missing
  for (double t = 7.1; t < 9; t += 0.5) job_->tick(at(t));
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(job_->counts().of(EpochEnd::kMoreWorkers), 0u);
}

TEST_F(RecoveryTest, SecondCopiesWaitForASecondServer) {
  JobDescription d = description();
  d.servers = 0;
  d.checkpoints.replicas = 2;
  members_ = {node(1), node(101), node(102)};
  job_.emplace(JobRunOptions{}, d, at(0));
  members_now(1);
  EXPECT_EQ(job_->state(), JobState::kWaiting);
  EXPECT_THAT(job_->progress(at(1)).message, HasSubstr("1 of 2 servers"));
  join(node(2), 2);
  EXPECT_THAT(only<SendAssignment>(actions_), SizeIs(2)) << "servers first";
}

/// What a worker whose GPU is gone comes back as.
NodeInfo on_cpu(std::uint64_t id) {
  NodeInfo info = node(id);
  info.device = "cpu";
  return info;
}

class GpuJobTest : public RecoveryTest {
 protected:
  /// Two workers with a GPU each, training.
  void begin_on_gpus(const JobDescription& d) {
    members_ = {node(1), node(2), node(101), node(102)};
    members_[2].device = members_[3].device = "cuda:0";
    job_.emplace(growth_options(), d, at(0));
    job_->on_members(members_, at(1));
    get_ready(2);
    ASSERT_EQ(job_->state(), JobState::kRunning);
  }
};

TEST_F(GpuJobTest, ACpuIsNotTakenInBesideThem) {
  begin_on_gpus(elastic(60));
  train(0, 3);
  join(on_cpu(103), 4);
  EXPECT_THAT(only<SendSave>(job_->tick(at(10))), IsEmpty());
  NodeInfo with_gpu = node(104);
  with_gpu.device = "cuda:1";
  join(with_gpu, 11);
  EXPECT_THAT(only<SendSave>(job_->tick(at(14))), SizeIs(4));
  train(3, 6);
  commit(5, 15);
  job_->on_epoch(9, at(15));
  ASSERT_THAT(job_->view().roster.workers, SizeIs(3));
  EXPECT_EQ(job_->view().roster.workers[2].node.id, NodeId(104));
}

TEST_F(GpuJobTest, ACpuTakesAPlaceOnlyWhenNobodyElseComes) {
  JobDescription d = description();
  d.min_workers = 2;
  begin_on_gpus(d);
  lose_the_second_worker();
  join(on_cpu(103), 5);
  EXPECT_THAT(only<TakeEpoch>(actions_), IsEmpty());
  EXPECT_THAT(job_->progress(at(5)).message,
              HasSubstr("waits for worker 1 (10.0.0.102:4711); worker 10.0.0.103:4711 is here, but "
                        "on its CPU"));
  actions_ = job_->tick(at(4 + seconds(d.replace_timeout) + 1));
  ASSERT_THAT(only<TakeEpoch>(actions_), SizeIs(1)) << "slow is better than not at all";
  actions_ = job_->on_epoch(9, at(100));
  ASSERT_THAT(job_->view().roster.workers, SizeIs(2));
  EXPECT_EQ(job_->view().roster.workers[1].node.id, NodeId(103));
  std::vector<std::string> alarms;
  for (const LogLine& line : only<LogLine>(actions_)) {
    if (line.kind == LogLine::Kind::kAlarm) alarms.push_back(line.text);
  }
  EXPECT_THAT(alarms, ::testing::ElementsAre(
                          HasSubstr("worker 1 (10.0.0.103:4711) computes on its CPU, the "
                                    "others on GPUs")));
}

TEST_F(GpuJobTest, AnotherGpuIsTakenAtOnceAndACpuForACpu) {
  begin_on_gpus(description());
  lose_the_second_worker();
  NodeInfo with_gpu = node(103);
  with_gpu.device = "cuda:3";
  join(with_gpu, 5);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1));

  members_ = {node(1), node(2), node(101), on_cpu(102)};
  members_[2].device = "cuda:0";
  job_.emplace(JobRunOptions{}, description(), at(0));
  job_->on_members(members_, at(1));
  get_ready(2);
  lose_the_second_worker();
  join(on_cpu(103), 5);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1)) << "it had one before";
}

TEST_F(RecoveryTest, NumbersThatDoNotDivideTheBatchAreNotUsed) {
  begin(elastic(64));
  train(0, 3);
  join(node(103), 4);
  EXPECT_THAT(only<SendSave>(job_->tick(at(10))), IsEmpty()) << "three do not";
  join(node(104), 11);
  EXPECT_THAT(only<SendSave>(job_->tick(at(14))), SizeIs(4));
  train(3, 6);
  commit(5, 15);
  job_->on_epoch(9, at(15));
  EXPECT_THAT(job_->view().roster.workers, SizeIs(4));
}

/// Begins with the workers 101 and 102 and takes 103 in; all of the epoch prepare.
class GrowthTest : public RecoveryTest {
 protected:
  void SetUp() override {
    begin(elastic(60));
    train(0, 3);
    join(node(103), 4);
    job_->tick(at(6.1));
    train(3, 6);
    commit(5, 7);
    job_->on_epoch(9, at(7));
    ASSERT_EQ(job_->view().roster.workers.size(), 3u);
    for (const Participant& p : job_->view().roster.servers)
      job_->on_ready(p.node.id, job_->epoch(), at(8));
    ASSERT_EQ(job_->state(), JobState::kPreparingWorkers);
  }
  void fails(std::uint64_t id, const std::string& reason) {
    actions_ = job_->on_failed(NodeId(id), job_->epoch(), reason, FailureKind::kJob, at(9));
  }
};

TEST_F(GrowthTest, ANewcomerThatCannotTakePartIsLeftOut) {
  fails(103, "no such file: /data/train");
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(5)) << "all, the newcomer too";
  EXPECT_THAT(job_->view().recovery.reason(),
              HasSubstr("cannot take part: no such file: /data/train"));
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(30))), IsEmpty()) << "another one may come";
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(40))), SizeIs(1));
  job_->on_epoch(10, at(40));
  EXPECT_THAT(job_->view().roster.workers, SizeIs(2));
  EXPECT_EQ(job_->counts().of(EpochEnd::kNodeUnfit), 1u);
  get_ready(41);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_THAT(only<SendSave>(job_->tick(at(300))), IsEmpty()) << "nor is it taken again";
  join(node(104), 301);
  EXPECT_THAT(only<SendSave>(job_->tick(at(310))), SizeIs(4)) << "others are";
}

TEST_F(GrowthTest, AnotherNewcomerTakesItsPlace) {
  fails(103, "no such file");
  join(node(104), 10);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
  job_->on_epoch(10, at(10));
  ASSERT_THAT(job_->view().roster.workers, SizeIs(3));
  EXPECT_EQ(job_->view().roster.workers[2].node.id, NodeId(104));
}

/// It took the newcomers longer to get ready than places are kept.
TEST_F(RecoveryTest, WhoIsLostOnTheWayBackHasItsTimeToo) {
  JobDescription d = elastic(60);
  d.min_workers = 1;  // so that it need not be waited for
  begin(d);
  lose_the_second_worker();
  join(node(103), 5);
  job_->on_epoch(9, at(5));
  lose(101, 300);
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(329))), IsEmpty());
  join(node(104), 329.5);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
  job_->on_epoch(10, at(329.5));
  EXPECT_THAT(job_->view().roster.workers, SizeIs(2));
}

TEST_F(GrowthTest, WhatTheOldOnesCannotDoWithSoManyEndsTheGrowth) {
  fails(101, "a batch of 60 samples is more than the data have");
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(5));
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1)) << "at once";
  job_->on_epoch(10, at(10));
  EXPECT_THAT(job_->view().roster.workers, SizeIs(2));
  get_ready(11);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  join(node(104), 301);
  EXPECT_THAT(only<SendSave>(job_->tick(at(310))), IsEmpty()) << "it is known how many fit";
}

TEST_F(GrowthTest, WhoWasReadyAndFailsFailsTheJob) {
  for (const std::uint64_t id : {101, 102, 103}) {
    job_->on_ready(NodeId(id), job_->epoch(), at(9));
  }
  ASSERT_EQ(job_->state(), JobState::kRunning);
  fails(103, "a label out of range");
  EXPECT_EQ(job_->state(), JobState::kFailed);
}

TEST_F(RecoveryTest, AReplacementThatCannotTakePartMakesRoomForAnother) {
  lose_the_second_worker();
  join(node(103), 5);
  job_->on_epoch(9, at(5));
  for (const Participant& p : job_->view().roster.servers)
    job_->on_ready(p.node.id, job_->epoch(), at(6));
  job_->on_failed(NodeId(103), job_->epoch(), "no such file", FailureKind::kJob, at(7));
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  join(node(104), 8);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
  job_->on_epoch(10, at(8));
  get_ready(9);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(job_->view().roster.workers[1].node.id, NodeId(104));
}

// The coordinator was stopped for a minute, or heard nobody: those who knocked meanwhile come
// first.
TEST_F(RecoveryTest, TimeInWhichNobodyCouldBeHeardIsNotCounted) {
  begin(elastic(60));
  lose_the_second_worker();
  job_->extend_deadlines(at(60), at(65));
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(65))), IsEmpty()) << "it still waits for another";
  join(node(103), 66);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
  job_->on_epoch(9, at(66));
  EXPECT_THAT(job_->view().roster.workers, SizeIs(2));
  get_ready(67);
  train(3, 4, 68);
  job_->extend_deadlines(at(3600), at(3670));
  EXPECT_TRUE(only<SendStop>(job_->tick(at(3670))).empty());
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

TEST_F(RecoveryTest, FewerWorkersOnlyWhereTheBatchOfAllCanBeDivided) {
  JobDescription d = elastic(64);
  d.min_workers = 3;
  members_ = {node(1), node(2), node(101), node(102), node(103), node(104)};
  job_.emplace(JobRunOptions{}, d, at(0));
  job_->on_members(members_, at(1));
  get_ready(2);
  ASSERT_EQ(job_->state(), JobState::kRunning);
  train(0, 3);
  lose(104, 4);
  for (const std::uint64_t id : {101, 102, 103, 1, 2}) halt(id, 3, 3, 4.1);
  commit(3, 4.2);
  EXPECT_THAT(only<TakeEpoch>(job_->tick(at(60))), IsEmpty()) << "three cannot";
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  join(node(105), 70);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1));
}

TEST_F(RecoveryTest, AnExactNumberOfWorkersDoesNotGrow) {
  JobDescription d = elastic(60);
  d.workers = 2;
  begin(d);
  train(0, 3);
  join(node(103), 4);
  EXPECT_THAT(only<SendSave>(job_->tick(at(10))), IsEmpty());
  lose(102, 11);
  for (const std::uint64_t id : {101, 1, 2}) halt(id, 3, 3, 11);
  commit(3, 11);
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1)) << "but it stands in";
}

// ---- newcomers that die, or say nothing ----

/// 103 was taken in. It dies before it is ready, and is started again at once.
class MishapTest : public GrowthTest {
 protected:
  void die(std::uint64_t id, double now) {
    ASSERT_EQ(job_->state(), JobState::kPreparingWorkers) << now;
    lose(id, now);
    ASSERT_EQ(job_->state(), JobState::kReplacing) << now;
  }
  void begin_epoch(double now) {
    ASSERT_THAT(only<TakeEpoch>(actions_), SizeIs(1)) << now;
    job_->on_epoch(job_->epoch().value() + 1, at(now));
    for (const Participant& p : job_->view().roster.servers)
      job_->on_ready(p.node.id, job_->epoch(), at(now));
  }
  void tick(double now) { actions_ = job_->tick(at(now)); }
};

TEST_F(MishapTest, WhoDiesAgainAndAgainIsNotWaitedFor) {
  die(103, 10);
  join(node(104), 10);
  begin_epoch(10);  // once may happen to anybody
  die(104, 10);
  join(node(105), 10);
  EXPECT_THAT(only<TakeEpoch>(actions_), IsEmpty());
  tick(19.5);
  EXPECT_THAT(only<TakeEpoch>(actions_), IsEmpty());
  tick(20.5);
  begin_epoch(20.5);
  ASSERT_THAT(job_->view().roster.workers, SizeIs(3));
  die(105, 21);
  join(node(106), 21);
  tick(36);
  EXPECT_THAT(only<TakeEpoch>(actions_), IsEmpty()) << "its place waits for another one";
  tick(38);
  begin_epoch(38);
  EXPECT_THAT(job_->view().roster.workers, SizeIs(2));
  get_ready(39);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(job_->counts().of(EpochEnd::kNodeUnfit), 3u);
  EXPECT_EQ(job_->counts().of(EpochEnd::kWorkerLost), 0u);
}

TEST_F(MishapTest, OthersTakeThePlaceAtOnce) {
  for (const std::uint64_t id : {103, 104}) {
    die(id, 10);
    join(node(id + 1), 10);
    if (id == 103) begin_epoch(10);
  }
  NodeInfo other = node(110);
  other.peer_host = "10.0.0.110";
  join(other, 11);
  begin_epoch(11);
  EXPECT_EQ(job_->view().roster.workers[2].node.id, NodeId(110));
}

TEST_F(MishapTest, WhoHasTrainedBeginsAnew) {
  die(103, 10);
  join(node(104), 10);
  begin_epoch(10);
  get_ready(11);
  ASSERT_EQ(job_->state(), JobState::kRunning);
  train(5, 8, 11);  // two of them are new
  lose(104, 12);
  EXPECT_EQ(job_->counts().of(EpochEnd::kWorkerLost), 1u);
  for (const std::uint64_t id : {101, 102, 1, 2}) halt(id, 8, 8, 12);
  commit(8, 12);
  join(node(105), 12);
  begin_epoch(12);
  die(105, 13);
  join(node(106), 13);
  begin_epoch(13);  // at once: it is its first time again
}

TEST_F(MishapTest, WhoDiesAtItsFirstBatchHasNotTrained) {
  std::uint64_t id = 103;
  for (const double now : {10.0, 11.0}) {
    get_ready(now);
    ASSERT_EQ(job_->state(), JobState::kRunning);
    train(5, 6, now);  // not for the first time
    lose(id, now);
    for (const Participant& p : std::vector(job_->view().roster.workers)) {
      if (p.state != ParticipantState::kLost) halt(p.node.id.value(), 6, 6, now);
    }
    for (const std::uint64_t server : {1, 2}) halt(server, 6, 6, now);
    if (job_->state() == JobState::kSaving) commit(6, now);
    join(node(++id), now);
    if (now == 10.0) begin_epoch(now);
  }
  EXPECT_THAT(only<TakeEpoch>(actions_), IsEmpty()) << "twice is a habit";
  EXPECT_EQ(job_->counts().of(EpochEnd::kNodeUnfit), 2u);
}

TEST_F(MishapTest, WhoDoesNotReachItsPeersAgainIsLeftOut) {
  const auto unreachable = [this](double now) {
    actions_ = job_->on_failed(NodeId(103), job_->epoch(), "no answer from server 0",
                               FailureKind::kPeer, at(now), node(1).address);
  };
  unreachable(10);
  begin_epoch(10);
  ASSERT_THAT(job_->view().roster.workers, SizeIs(3)) << "it may be the server's fault";
  unreachable(11);
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  tick(20.5);
  EXPECT_THAT(only<TakeEpoch>(actions_), IsEmpty());
  tick(21.5);
  begin_epoch(21.5);  // it may have been the network
  unreachable(22);
  tick(38);
  begin_epoch(38);
  EXPECT_THAT(job_->view().roster.workers, SizeIs(2));
  get_ready(39);
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

/// Two must train, and the second machine's processes die.
TEST_F(RecoveryTest, WhoIsNeededIsTakenAfterAShortPauseWhateverItDid) {
  begin(elastic(60));
  train(0, 3);
  lose(102, 4);
  for (const std::uint64_t id : {101, 1, 2}) halt(id, 3, 3, 4);
  commit(3, 4);
  std::uint64_t id = 103;
  double now = 5;
  std::vector<double> taken;
  members_.push_back(node(id));
  bool asked = !only<TakeEpoch>(members_now(now)).empty();
  for (; now < 700 && !job_->ended(); now += 0.5) {
    asked = asked || !only<TakeEpoch>(job_->tick(at(now))).empty();
    if (std::exchange(asked, false)) {
      taken.push_back(now);
      job_->on_epoch(job_->epoch().value() + 1, at(now));
      for (const Participant& p : job_->view().roster.servers) {
        job_->on_ready(p.node.id, job_->epoch(), at(now));
      }
    }
    if (job_->state() != JobState::kPreparingWorkers) continue;
    lose(id, now);
    members_.push_back(node(++id));
    asked = !only<TakeEpoch>(members_now(now)).empty();
  }
  ASSERT_GE(taken.size(), 50u);
  EXPECT_GE(now, 600.0) << "as long as a recovery may take";
  EXPECT_GE(taken.back() - taken[taken.size() - 2], 10.0);
  EXPECT_LE(taken.back() - taken[taken.size() - 2], 11.0);
  EXPECT_EQ(job_->state(), JobState::kFailed);
}

TEST_F(RecoveryTest, AMachineThatIsBrokenCostsAJobLessAndLess) {
  JobDescription d = elastic(60);
  d.iterations = 1'000'000;
  begin(d);
  std::uint64_t newcomer = 103;
  std::vector<double> taken;
  int steps = 0, trained = 0;
  bool asked = false;
  const auto look = [&asked](const JobActions& actions) {
    asked = asked || !only<TakeEpoch>(actions).empty();
  };
  members_.push_back(node(newcomer));
  look(members_now(3));
  for (double now = 3; now < 12 * 3600; now += 0.5) {
    ++steps;
    look(job_->tick(at(now)));
    if (std::exchange(asked, false)) {
      job_->on_epoch(job_->epoch().value() + 1, at(now));
      for (const Participant& p : job_->view().roster.servers) {
        job_->on_ready(p.node.id, job_->epoch(), at(now));
      }
    }
    if (job_->state() == JobState::kPreparingWorkers && job_->view().roster.workers.size() == 3) {
      taken.push_back(now);
      const NodeInfo dead = job_->view().roster.workers[2].node;
      std::erase_if(members_, [&dead](const NodeInfo& n) { return n.id == dead.id; });
      look(job_->on_departure(lost(dead), at(now)));
      members_.push_back(node(++newcomer));
      look(members_now(now));
    } else if (job_->state() == JobState::kPreparingWorkers) {
      get_ready(now);
    }
    ASSERT_FALSE(job_->ended()) << job_->progress(at(now)).message;
    if (job_->state() != JobState::kRunning) continue;
    ++trained;
    const Iteration done = job_->progress(at(now)).completed;
    train(done, done + 1, now);
    if (job_->view().checkpoints.asked_for() != done + 1) continue;
    commit(done + 1, now);
    look(actions_);
  }
  ASSERT_GE(taken.size(), 10u) << "it is never given up";
  EXPECT_GE(taken.back() - taken[taken.size() - 2], 3600.0);
  EXPECT_LE(taken.size(), 24u);
  EXPECT_GE(trained, 0.98 * steps);
}

TEST_F(GrowthTest, WhoDoesNotGetReadyIsLeftOut) {
  for (const std::uint64_t id : {101, 102}) job_->on_ready(NodeId(id), job_->epoch(), at(9));
  EXPECT_THAT(job_->tick(at(600)), IsEmpty());
  actions_ = job_->tick(at(610));
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  EXPECT_THAT(job_->view().recovery.reason(),
              HasSubstr("not ready after 602 s (--prepare-timeout-s): worker 2 (10.0.0.103"));
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(5));
  EXPECT_THAT(only<TakeEpoch>(actions_), SizeIs(1)) << "its place has waited for long enough";
  job_->on_epoch(10, at(610));
  EXPECT_THAT(job_->view().roster.workers, SizeIs(2));
  get_ready(611);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_THAT(only<SendSave>(job_->tick(at(700))), IsEmpty()) << "nor is it taken again";
}

}  // namespace
}  // namespace poseidon::job_run_growth_test
