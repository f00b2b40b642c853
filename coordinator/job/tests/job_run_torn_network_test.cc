// Two nodes that do not reach each other, though both reach the coordinator: whom a job then tries
// to do without. What a node says of another is a report of Failed (common/node/job_reports.h).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/job/tests/job_run_test_support.h"

namespace poseidon::job_run_torn_network_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Three workers (101 to 103) and two servers (1, 2), training, each on its own machine.
class TornNetworkTest : public RecoveryTest {
 protected:
  void SetUp() override {
    JobDescription d = description();
    d.workers = 3;
    begin_with(d,
               {on_its_own(1), on_its_own(2), on_its_own(101), on_its_own(102), on_its_own(103)});
  }
  void begin_with(const JobDescription& d, std::vector<NodeInfo> members) {
    members_ = std::move(members);
    job_.emplace(JobRunOptions{}, d, at(0));
    job_->on_members(members_, at(1));
    get_ready(2);
    ASSERT_EQ(job_->state(), JobState::kRunning);
  }
  static NodeInfo on_its_own(std::uint64_t id) {
    NodeInfo info = node(id);
    info.peer_host = absl::StrCat("10.0.0.", id);
    return info;
  }
  void cannot_reach(std::uint64_t from, std::uint64_t to) {
    actions_ = job_->on_failed(NodeId(from), job_->epoch(),
                               absl::StrCat(node(to).address, " could not be reached"),
                               FailureKind::kPeer, at(now_), node(to).address);
  }
  /// Whoever is asked to halts; nothing new was made. Then as long as it takes until an epoch is
  /// wanted, which begins.
  void next_epoch() {
    const Iteration version = job_->view().run.first_iteration;
    for (const auto* group : job_->view().roster.groups()) {
      for (const Participant& p : std::vector(*group)) {
        if (job_->state() != JobState::kHalting) break;
        if (p.state != ParticipantState::kLost) halt(p.node.id.value(), version, version, now_);
      }
    }
    for (const double end = now_ + 100; job_->state() == JobState::kReplacing && now_ < end;) {
      if (!only<TakeEpoch>(actions_).empty()) {
        actions_ = job_->on_epoch(job_->epoch().value() + 1, at(now_));
        return;
      }
      actions_ = job_->tick(at(now_ += 0.5));
    }
    FAIL() << job_->progress(at(now_)).message;
  }
  std::vector<std::uint64_t> ids(const std::vector<Participant>& group) const {
    std::vector<std::uint64_t> found;
    for (const Participant& p : group) found.push_back(p.node.id.value());
    return found;
  }

  double now_ = 40;
};

TEST_F(TornNetworkTest, AWorkerThatDoesNotReachAServerGivesItsPlaceToASpare) {
  join(on_its_own(104), 3);
  cannot_reach(102, 2);
  next_epoch();
  EXPECT_THAT(ids(job_->view().roster.workers), ElementsAre(101, 102, 103))
      << "once it may be anything";
  cannot_reach(102, 2);  // while it prepares
  EXPECT_THAT(job_->view().recovery.reason(), HasSubstr("worker 1 (10.0.0.102:4711) failed again"));
  next_epoch();
  EXPECT_THAT(ids(job_->view().roster.workers), ElementsAre(101, 104, 103));
  EXPECT_LE(now_, 41) << "at once";
  get_ready(now_);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(job_->counts().of(EpochEnd::kPeerUnreachable), 1u);
}

TEST_F(TornNetworkTest, AServerThatSeveralDoNotReachGivesItsPlaceToASpare) {
  join(on_its_own(3), 3);
  cannot_reach(102, 2);
  cannot_reach(103, 2);  // while they halt: it counts as well
  next_epoch();
  cannot_reach(101, 2);
  EXPECT_THAT(job_->view().recovery.reason(),
              HasSubstr("server 1 (10.0.0.2:4711) was not reached again"));
  next_epoch();
  EXPECT_THAT(ids(job_->view().roster.servers), ElementsAre(1, 3));
  EXPECT_THAT(ids(job_->view().roster.workers), ElementsAre(101, 102, 103));
}

/// Its store has the only copy: whoever took its place, all would have to read there.
TEST_F(TornNetworkTest, AServerWhoseCheckpointIsNeededIsNotLeftOut) {
  join(on_its_own(3), 3);
  train(0, 4);
  absl::StatusOr<JobActions> asked = job_->save_checkpoint(at(4));
  ASSERT_TRUE(asked.ok()) << asked.status();
  const Iteration version = only<SendSave>(*asked).at(0).iteration;
  train(4, version);
  commit(version, 5);
  int times = 0;
  for (; !job_->ended() && times < 20; ++times) {
    now_ += 40;
    cannot_reach(102, 2);
    if (job_->state() == JobState::kHalting) {
      cannot_reach(103, 2);
      for (const std::uint64_t id : {101, 102, 103, 1, 2}) halt(id, version, version, now_);
    }
    if (!job_->ended()) next_epoch();
    EXPECT_THAT(ids(job_->view().roster.servers), ElementsAre(1, 2));
  }
  EXPECT_EQ(times, IdleRecoveriesOptions{}.most + 2) << "the first has something to keep";
}

TEST_F(TornNetworkTest, OfTwoWorkersTheOneThatOthersDoNotReachEither) {
  join(on_its_own(104), 3);
  cannot_reach(101, 103);
  next_epoch();
  cannot_reach(101, 102);
  next_epoch();
  EXPECT_THAT(ids(job_->view().roster.workers), ElementsAre(104, 102, 103));
}

TEST_F(TornNetworkTest, OfTwoWorkersAloneTheLaterOne) {
  join(on_its_own(104), 3);
  cannot_reach(101, 102);
  cannot_reach(102, 101);
  next_epoch();
  cannot_reach(101, 102);
  next_epoch();
  EXPECT_THAT(ids(job_->view().roster.workers), ElementsAre(101, 104, 103));
}

TEST_F(TornNetworkTest, WithoutASpareTheJobGoesOnWithFewer) {
  for (int i = 0; i < 6 && job_->view().roster.workers.size() == 3; ++i) {
    cannot_reach(103, 1);
    ASSERT_FALSE(job_->ended()) << i << ": " << job_->progress(at(now_)).message;
    next_epoch();
  }
  EXPECT_THAT(ids(job_->view().roster.workers), ElementsAre(101, 102));
  EXPECT_LE(now_, 40 + 60);
  get_ready(now_);
  EXPECT_EQ(job_->state(), JobState::kRunning);
}

TEST_F(TornNetworkTest, WhereNobodyCanBeSparedItEndsWithTheReason) {
  JobDescription d = description();
  d.servers = 1;
  d.min_workers = 2;
  begin_with(d, {on_its_own(1), on_its_own(101), on_its_own(102)});
  int times = 0;
  for (; !job_->ended() && times < 20; ++times) {
    now_ += 40;
    cannot_reach(102, 1);
    if (!job_->ended()) next_epoch();
  }
  EXPECT_EQ(times, IdleRecoveriesOptions{}.most + 1);
  EXPECT_THAT(
      job_->progress(at(now_)).message,
      HasSubstr("worker 1 (10.0.0.102:4711) failed: 10.0.0.1:4711 could not be reached; the "
                "job recovered 5 times in a row"));
}

TEST_F(TornNetworkTest, AnIterationThatIsNewShowsThatAllReachEachOther) {
  join(on_its_own(104), 3);
  cannot_reach(102, 2);
  next_epoch();
  get_ready(now_);
  train(0, 2, now_);
  for (const std::uint64_t id : {101, 102, 103}) {
    actions_ = job_->on_iteration(NodeId(id), job_->epoch(), 2, 1.0, at(now_));
  }
  cannot_reach(102, 2);
  ASSERT_EQ(job_->state(), JobState::kHalting);
  for (const std::uint64_t id : {101, 102, 103, 1, 2}) halt(id, 3, 3, now_);
  commit(3, now_);
  next_epoch();
  EXPECT_THAT(ids(job_->view().roster.workers), ElementsAre(101, 102, 103))
      << "the first time again";
}

/// Only one failure ends an epoch; others that say the same may come when the next one has begun.
TEST_F(TornNetworkTest, WhatIsSaidOfTheEpochBeforeCountsAsWell) {
  join(on_its_own(3), 3);
  cannot_reach(101, 2);
  next_epoch();
  job_->on_failed(NodeId(103), Epoch(7), "late", FailureKind::kPeer, at(now_), node(2).address);
  EXPECT_EQ(job_->state(), JobState::kPreparingServers) << "it ends nothing";
  cannot_reach(101, 2);
  EXPECT_THAT(job_->view().recovery.reason(),
              HasSubstr("server 1 (10.0.0.2:4711) was not reached again"));
}

/// A process that is started again is no second witness.
TEST_F(TornNetworkTest, WhoIsStartedAgainDoesNotCountTwice) {
  join(on_its_own(3), 3);
  cannot_reach(102, 2);
  next_epoch();
  lose(102, now_);
  join(on_its_own(105), now_);
  next_epoch();
  ASSERT_THAT(ids(job_->view().roster.workers), ElementsAre(101, 105, 103));
  cannot_reach(105, 2);
  EXPECT_EQ(job_->state(), JobState::kReplacing);
  EXPECT_THAT(job_->view().recovery.reason(),
              Not(HasSubstr("server 1 (10.0.0.2:4711) was not reached")));
}

/// Another process may have the address, or two, behind different hosts.
TEST_F(TornNetworkTest, WhoIsNotKnownIsNotBlamed) {
  join(on_its_own(104), 3);
  for (int i = 0; i < 3; ++i) {
    actions_ = job_->on_failed(NodeId(102), job_->epoch(), "it could not be reached",
                               FailureKind::kPeer, at(now_), "10.0.0.99:1");
    next_epoch();
  }
  EXPECT_THAT(ids(job_->view().roster.workers), ElementsAre(101, 102, 103));
  EXPECT_EQ(job_->counts().of(EpochEnd::kNodeUnfit), 0u);
}

}  // namespace
}  // namespace poseidon::job_run_torn_network_test
