// Workers that have found other data than the others, or than a checkpoint was trained on.

#include "coordinator/job/tests/job_run_test_support.h"

namespace poseidon::job_run_data_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const DataIdentity kDigits = {.train = {.samples = 60000, .digest = 7},
                              .test = DatasetIdentity{.samples = 10000, .digest = 9}};
const DataIdentity kFewer = {.train = {.samples = 59000, .digest = 8}, .test = kDigits.test};

class DataTest : public RecoveryTest {
 protected:
  JobActions ready(std::uint64_t id, const DataIdentity& data, double now = 2) {
    return job_->on_ready(NodeId(id), job_->epoch(), at(now), data);
  }
  void servers_are_ready(double now = 2) {
    for (const Participant& p : job_->view().roster.servers)
      job_->on_ready(p.node.id, job_->epoch(), at(now));
    ASSERT_EQ(job_->state(), JobState::kPreparingWorkers);
  }
  void prepare(const JobDescription& d) {
    members_ = {node(1), node(2), node(101), node(102)};
    job_.emplace(JobRunOptions{}, d, at(0));
    job_->on_members(members_, at(1));
    servers_are_ready();
  }
  static std::vector<std::string> alarms(const JobActions& actions) {
    std::vector<std::string> texts;
    for (const LogLine& line : only<LogLine>(actions)) {
      if (line.kind == LogLine::Kind::kAlarm) texts.push_back(line.text);
    }
    return texts;
  }
};

TEST_F(DataTest, TheSameDataTrain) {
  prepare(description());
  EXPECT_EQ(job_->view().data.identity(), std::nullopt);
  ready(102, kDigits);
  actions_ = ready(101, kDigits);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_THAT(alarms(actions_), IsEmpty());
  EXPECT_EQ(job_->view().data.identity(), kDigits);
  train(0, 5);
  commit(4, 3);
  EXPECT_EQ(job_->view().checkpoints.committed().begin()->second.data, kDigits);
}

TEST_F(DataTest, OtherDataFailTheJobBeforeItTrains) {
  prepare(description());
  ready(101, kDigits);
  actions_ = ready(102, kFewer);
  EXPECT_EQ(job_->state(), JobState::kFailed);
  const std::string why = job_->progress(at(3)).message;
  EXPECT_THAT(why, HasSubstr("worker 1 (10.0.0.102:4711) failed: its data are not those of worker "
                             "0 (10.0.0.101:4711): 59000 training samples here, 60000 there"));
  EXPECT_THAT(why, HasSubstr("the same files at the same path"));
  EXPECT_THAT(only<SendStop>(actions_), SizeIs(4));
}

TEST_F(DataTest, ANewcomerWithOtherDataIsLeftOut) {
  prepare(elastic(60));
  ready(101, kDigits);
  ready(102, kDigits);
  train(0, 3);
  join(node(103), 4);
  job_->tick(at(6.1));
  train(3, 6);
  commit(5, 7);
  job_->on_epoch(9, at(7));
  ASSERT_EQ(job_->view().roster.workers.size(), 3u);
  servers_are_ready(8);
  // Whoever says so first: the job's data are known.
  actions_ = ready(103, kFewer, 9);
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  EXPECT_THAT(job_->view().recovery.reason(),
              HasSubstr("cannot take part: its data are not those of worker"));
  EXPECT_EQ(job_->view().data.identity(), kDigits);
}

TEST_F(DataTest, WhoWasLostBeforeAnythingWasTrainedDecidesNothing) {
  prepare(description());
  ready(101, kFewer);
  lose(101, 3);
  join(node(103), 4);
  job_->on_epoch(9, at(5));
  ASSERT_EQ(job_->epoch(), Epoch(9));
  servers_are_ready(6);
  ready(102, kDigits, 7);
  ready(103, kDigits, 7);
  EXPECT_EQ(job_->state(), JobState::kRunning) << job_->progress(at(8)).message;
  EXPECT_EQ(job_->view().data.identity(), kDigits);
}

TEST_F(DataTest, DataThatChangeDuringTheRunAreToldAsThat) {
  prepare(description());
  ready(101, kDigits);
  ready(102, kDigits);
  train(0, 5);
  commit(5, 3);
  lose(1, 5);
  join(node(1), 6);
  job_->on_epoch(9, at(7));
  ASSERT_EQ(job_->epoch(), Epoch(9));
  servers_are_ready(8);
  ready(102, kFewer, 9);
  EXPECT_EQ(job_->state(), JobState::kFailed);
  EXPECT_THAT(job_->progress(at(10)).message,
              HasSubstr("its data have changed since the run began: 59000 training samples here, "
                        "60000 there"));
  EXPECT_THAT(job_->progress(at(10)).message, HasSubstr("poseidon checkpoint restore"));
}

TEST_F(DataTest, WhatTheFirstCouldNotReadIsKnownFromTheNext) {
  DataIdentity unread = kDigits;
  unread.train.digest = 0;
  JobDescription d = description();
  prepare(d);
  ready(101, unread);
  ready(102, kDigits);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(job_->view().data.identity(), kDigits);
}

TEST_F(DataTest, AnEarlierVersionsWorkerSaysNothingOfThem) {
  prepare(description());
  job_->on_ready(NodeId(101), job_->epoch(), at(2));
  ready(102, kDigits);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(job_->view().data.identity(), kDigits);
}

class RestoredDataTest : public DataTest {
 protected:
  /// From a checkpoint that was trained on `data`.
  void restore(const std::optional<DataIdentity>& data) {
    prepare(description());
    ready(101, kDigits);
    ready(102, kDigits);
    train(0, 5);
    commit(5, 3);
    JobDescription d = description();
    d.epoch = Epoch(9);
    d.source = snapshot_id(Epoch(7), 5);
    CheckpointManifest manifest = job_->view().checkpoints.committed().at(*d.source);
    manifest.data = data;
    d.committed = {manifest};
    prepare(d);
  }
};

TEST_F(RestoredDataTest, TheSameGoOnInSilence) {
  restore(kDigits);
  EXPECT_THAT(alarms(ready(101, kDigits)), IsEmpty());
  EXPECT_THAT(alarms(ready(102, kDigits)), IsEmpty());
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

TEST_F(RestoredDataTest, OthersGoOnAndAreToldOnce) {
  restore(kDigits);
  const std::vector<std::string> told = alarms(ready(102, kFewer));
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_THAT(
      told[0],
      HasSubstr("the data of worker 1 (10.0.0.102:4711) are not those that checkpoint 7-5 was "
                "trained on: 59000 training samples here, 60000 there"));
  EXPECT_THAT(alarms(ready(101, kFewer)), IsEmpty());
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(job_->view().data.identity(), kFewer) << "which the next checkpoint says";
}

TEST_F(RestoredDataTest, WhatCouldNotBeReadNowIsStillKnown) {
  restore(kDigits);
  DataIdentity unread = kDigits;
  unread.train.digest = 0;
  EXPECT_THAT(alarms(ready(102, unread)), IsEmpty());
  ready(101, kDigits);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(job_->view().data.identity(), kDigits);
}

TEST_F(RestoredDataTest, ButNotOneWorkerAlone) {
  restore(kDigits);
  ready(102, kFewer);
  ready(101, kDigits);
  EXPECT_EQ(job_->state(), JobState::kFailed);
  EXPECT_THAT(job_->progress(at(3)).message, HasSubstr("60000 training samples here, 59000 there"));
}

TEST_F(RestoredDataTest, OfAnEarlierVersionsCheckpointNothingIsKnown) {
  restore(std::nullopt);
  EXPECT_THAT(alarms(ready(101, kFewer)), IsEmpty());
  EXPECT_THAT(alarms(ready(102, kFewer)), IsEmpty());
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

}  // namespace
}  // namespace poseidon::job_run_data_test
