#include "coordinator/members/membership.h"

#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::membership_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Nanoseconds at(double seconds) {
  return Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

NodeInfo worker(std::string address) {
  NodeInfo node;
  node.role = NodeRole::kWorker;
  node.address = std::move(address);
  node.peer_host = "10.0.0.9";
  node.process_id = 12;
  return node;
}

NodeInfo server(std::string address) {
  NodeInfo node = worker(std::move(address));
  node.role = NodeRole::kServer;
  return node;
}

TEST(Membership, IdsGrowAndNodesKeepTheirOrder) {
  Membership membership({});
  EXPECT_EQ(*membership.join(worker("a:1"), at(0)), NodeId(1));
  EXPECT_EQ(*membership.join(server("a:1"), at(0)), NodeId(2));
  ASSERT_TRUE(membership.leave(NodeId(1), "bye", at(1)));
  EXPECT_EQ(*membership.join(worker("a:1"), at(1)), NodeId(3));
  ASSERT_THAT(membership.nodes(), SizeIs(2));
  EXPECT_EQ(membership.nodes()[0].id, NodeId(2));
  EXPECT_EQ(membership.nodes()[1].id, NodeId(3));
  EXPECT_EQ(membership.count(NodeRole::kWorker), 1u);
  EXPECT_EQ(membership.find(NodeId(1)), nullptr);
}

TEST(Membership, SilenceForTheLeaseIsAllowedAndNoLonger) {
  Membership membership({});
  const NodeId id = *membership.join(worker("a:1"), at(10));
  EXPECT_THAT(membership.expire(at(13)), IsEmpty());
  const std::vector<Departure> gone = membership.expire(at(13.1));
  ASSERT_THAT(gone, SizeIs(1));
  EXPECT_EQ(gone[0].node.id, id);
  EXPECT_EQ(gone[0].reason, "was silent for 3.1 s (lease 3.0 s)");
  EXPECT_EQ(gone[0].silent, at(3.1));
  EXPECT_THAT(membership.expire(at(20)), IsEmpty());
  EXPECT_FALSE(membership.heard_from(id, at(20)));
}

TEST(Membership, EveryMessageRenewsTheLease) {
  Membership membership({});
  const NodeId speaking = *membership.join(worker("a:1"), at(0));
  const NodeId silent = *membership.join(worker("b:1"), at(0));
  for (int i = 1; i <= 10; ++i) EXPECT_TRUE(membership.heard_from(speaking, at(i)));
  const std::vector<Departure> gone = membership.expire(at(10.5));
  ASSERT_THAT(gone, SizeIs(1));
  EXPECT_EQ(gone[0].node.id, silent);
}

/// Three nodes of a job, of which the last is cut off from us; the job's iterations take 100 ms.
class VouchedTest : public ::testing::Test {
 protected:
  VouchedTest() {
    for (const char* address : {"a:1", "b:1", "c:1"}) {
      nodes_.push_back(*membership_.join(worker(address), at(0)));
    }
  }
  /// Until then. Who went, and when.
  std::vector<Departure> run_until(double end, bool trains) {
    for (; now_ < end; now_ += 0.1) {
      for (const NodeId id : {nodes_[0], nodes_[1]}) membership_.heard_from(id, at(now_));
      if (trains) membership_.job_advanced(nodes_, at(now_));
      std::vector<Departure> gone = membership_.expire(at(now_));
      if (!gone.empty()) return gone;
    }
    return {};
  }

  Membership membership_{MembershipOptions{}};
  std::vector<NodeId> nodes_;
  double now_ = 0.1;
};

TEST_F(VouchedTest, WhoIsSilentWhileTheJobTrainsWithItKeepsItsPlace) {
  EXPECT_THAT(run_until(2.9, /*trains=*/true), IsEmpty());
  EXPECT_THAT(membership_.vouched_for(at(3), at(now_)), IsEmpty()) << "nobody would miss it yet";
  EXPECT_THAT(run_until(60, true), IsEmpty());
  EXPECT_THAT(membership_.vouched_for(at(3), at(now_)), ElementsAre(nodes_[2]));
  membership_.heard_from(nodes_[2], at(now_));
  EXPECT_THAT(membership_.vouched_for(at(3), at(now_)), IsEmpty());
  // From now on all stand still: the lease counts from there.
  const std::vector<Departure> gone = run_until(100, /*trains=*/false);
  ASSERT_THAT(gone, SizeIs(1));
  EXPECT_EQ(gone[0].node.id, nodes_[2]);
  EXPECT_LE(now_, 63.3);
}

TEST_F(VouchedTest, WhenTheJobStandsStillTheLeaseCounts) {
  EXPECT_THAT(run_until(60, true), IsEmpty());
  const std::vector<Departure> gone = run_until(100, false);
  ASSERT_THAT(gone, SizeIs(1));
  EXPECT_NEAR(now_, 63, 0.2);
  EXPECT_THAT(gone[0].reason,
              AllOf(HasSubstr("was silent for 63."), HasSubstr("reach the coordinator?")));
}

TEST_F(VouchedTest, NotForEver) {
  const std::vector<Departure> gone = run_until(300, true);
  ASSERT_THAT(gone, SizeIs(1));
  EXPECT_EQ(gone[0].node.id, nodes_[2]);
  EXPECT_NEAR(now_, 123, 0.3) << "two minutes, and a lease";
}

/// It may have sent its last gradient a moment before it died.
TEST_F(VouchedTest, ThreeIterationsProveThatWhoseStreamEndedLives) {
  for (const int advances : {2, 3}) {
    Membership membership({});
    const NodeId id = *membership.join(worker("a:1"), at(0));
    const NodeId speaks = *membership.join(worker("b:1"), at(0));
    membership.detach(id, "broke its stream", at(0));
    for (int i = 0; i < advances; ++i) membership.job_advanced({id, speaks}, at(2.5));
    membership.heard_from(speaks, at(3.1));
    EXPECT_THAT(membership.expire(at(3.1)), SizeIs(advances == 2 ? 1 : 0));
  }
}

TEST_F(VouchedTest, AtTheEndOnlyWhoHasProvedToBeAtWorkIsAwaited) {
  for (const int advances : {2, 3}) {
    Membership membership({});
    const NodeId id = *membership.join(worker("a:1"), at(0));
    const NodeId speaks = *membership.join(worker("b:1"), at(0));
    std::optional<double> gone;
    for (double now = 0.5; now < 130 && !gone; now += 0.5) {
      membership.heard_from(speaks, at(now));
      for (int i = 0; now == 1.0 && i < advances; ++i) membership.job_advanced({id, speaks}, at(1));
      membership.await(membership.vouched_for(at(3), at(now)));
      if (!membership.expire(at(now)).empty()) gone = now;
    }
    EXPECT_EQ(gone, advances == 2 ? 4.5 : 120.5);
  }
}

/// All were silent, and the first message of one proves nothing about the others.
TEST_F(VouchedTest, SilenceThatIsForgivenMakesNobodyLookCutOff) {
  EXPECT_THAT(run_until(2, true), IsEmpty());
  for (; now_ < 12; now_ += 0.1) ASSERT_THAT(membership_.expire(at(now_)), IsEmpty());
  membership_.heard_from(nodes_[0], at(now_));
  EXPECT_THAT(membership_.expire(at(now_)), IsEmpty());
  EXPECT_THAT(membership_.vouched_for(at(3), at(now_)), IsEmpty());
}

TEST_F(VouchedTest, OnlyWhomTheIterationNeeded) {
  for (; now_ < 3; now_ += 0.1) {
    for (const NodeId id : {nodes_[0], nodes_[1]}) membership_.heard_from(id, at(now_));
    membership_.job_advanced({nodes_[0], nodes_[1]}, at(now_));
    ASSERT_THAT(membership_.expire(at(now_)), IsEmpty());
  }
  membership_.heard_from(nodes_[0], at(3.1));
  EXPECT_THAT(membership_.expire(at(3.1)), SizeIs(1));
}

TEST(Membership, AnOlderTimeDoesNotShortenTheLease) {
  Membership membership({});
  const NodeId id = *membership.join(worker("a:1"), at(10));
  EXPECT_TRUE(membership.heard_from(id, at(5)));
  EXPECT_THAT(membership.expire(at(12.9)), IsEmpty());
}

TEST(Membership, LeavingTellsHowLongItWasSilent) {
  Membership membership({});
  const NodeId id = *membership.join(server("a:1"), at(0));
  const std::optional<Departure> gone = membership.leave(id, "its stream ended", at(0.4));
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->reason, "its stream ended");
  EXPECT_EQ(gone->silent, at(0.4));
  EXPECT_FALSE(membership.leave(id, "again", at(0.5)));
}

TEST(Membership, SameAddressAndRoleIsRefusedWhileTheFirstLives) {
  Membership membership({});
  ASSERT_TRUE(membership.join(server("a:1"), at(0)).ok());
  const absl::Status status = membership.join(server("a:1"), at(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("server at a:1 is already in the cluster"));
  EXPECT_TRUE(membership.join(worker("a:1"), at(1)).ok()) << "another role may share the address";
  EXPECT_TRUE(membership.join(worker(""), at(1)).ok());
  EXPECT_TRUE(membership.join(worker(""), at(1)).ok()) << "no address, no clash";
  for (int i = 3; i < 8; ++i) EXPECT_TRUE(membership.heard_from(NodeId(2), at(0.5 * i)));
  EXPECT_THAT(membership.expire(at(3.5)), SizeIs(1));
  EXPECT_TRUE(membership.join(server("a:1"), at(3.6)).ok());
}

TEST(Membership, AFullClusterRefuses) {
  Membership membership({.max_nodes = 2});
  ASSERT_TRUE(membership.join(worker(""), at(0)).ok());
  ASSERT_TRUE(membership.join(worker(""), at(0)).ok());
  EXPECT_EQ(membership.join(worker(""), at(0)).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// ---- streams that break ----

TEST(Membership, ABrokenStreamHasOneLeaseToComeBack) {
  Membership membership({});
  NodeInfo node = worker("a:1");
  node.id = *membership.join(node, at(0));
  EXPECT_TRUE(membership.heard_from(node.id, at(1)));
  EXPECT_TRUE(membership.detach(node.id, "broke its stream", at(2)));
  EXPECT_EQ(membership.gone_from(node, at(2)), node.id);
  EXPECT_THAT(membership.expire(at(5)), IsEmpty()) << "the break counts as a sign of life";
  node.machine = 42;
  EXPECT_TRUE(membership.attach(node, at(5)));
  EXPECT_EQ(membership.find(node.id)->machine, 42u) << "as it says when it comes back";
  EXPECT_EQ(membership.gone_from(node, at(5)), std::nullopt);
  EXPECT_THAT(membership.expire(at(5.5)), IsEmpty());
  EXPECT_TRUE(membership.detach(node.id, "broke its stream", at(6)));
  membership.expire(at(6.5));
  for (double time = 6.5; time < 9; time += 0.5)
    EXPECT_THAT(membership.expire(at(time)), IsEmpty());
  const std::vector<Departure> gone = membership.expire(at(9.1));
  ASSERT_THAT(gone, SizeIs(1));
  EXPECT_EQ(gone[0].reason, "broke its stream and did not come back for 3.1 s");
  EXPECT_FALSE(membership.attach(node, at(9.2))) << "it must join as a new node";
  EXPECT_FALSE(membership.detach(node.id, "again", at(9.2)));
}

TEST(Membership, OnlyTheSameProcessComesBack) {
  Membership membership({});
  NodeInfo node = worker("a:1");
  node.id = *membership.join(node, at(0));
  NodeInfo other = node;
  other.process_id = 13;
  EXPECT_FALSE(membership.attach(other, at(1)));
  other = node;
  other.address = "b:1";
  EXPECT_FALSE(membership.attach(other, at(1)));
  other = node;
  other.role = NodeRole::kServer;
  EXPECT_FALSE(membership.attach(other, at(1)));
  other = node;
  other.incarnation = 77;
  EXPECT_FALSE(membership.attach(other, at(1))) << "in containers each has number 1";
  EXPECT_TRUE(membership.attach(node, at(1))) << "even before we noticed that it was away";
}

// When all machines lose power, no stream breaks, and no node is given up.
TEST(Membership, AnAddressIsFreeWhenAnotherProcessHasItAndItsOwnerIsSilent) {
  Membership membership({});
  const NodeId id = *membership.join(worker("a:1"), at(0));
  NodeInfo other = worker("a:1");
  other.incarnation = 77;
  EXPECT_EQ(membership.gone_from(other, at(2.9)), std::nullopt) << "two with one --listen";
  EXPECT_EQ(membership.gone_from(other, at(3.1)), id);
  EXPECT_EQ(membership.gone_from(worker("a:1"), at(3.1)), std::nullopt) << "itself";
  EXPECT_EQ(membership.gone_from(server("a:1"), at(3.1)), std::nullopt);
  EXPECT_TRUE(membership.detach(id, "broke its stream", at(3.2)));
  EXPECT_EQ(membership.gone_from(worker("a:1"), at(3.3)), id);
}

TEST(Membership, WhoHasItsStoreHasItsPlace) {
  Membership membership({});
  NodeInfo first = server("a:1");
  first.store_identity = std::string(32, 'a');
  const NodeId id = *membership.join(first, at(0));
  NodeInfo again = server("b:1");
  again.process_id = 13;
  again.store_identity = std::string(32, 'b');
  EXPECT_TRUE(membership.detach(id, "broke its stream", at(0.5)));
  EXPECT_EQ(membership.gone_from(again, at(1)), std::nullopt) << "another one";
  again.store_identity = first.store_identity;
  EXPECT_EQ(membership.gone_from(again, at(1)), id);
  NodeInfo without = server("c:1");
  EXPECT_EQ(membership.gone_from(without, at(1)), std::nullopt);
}

// ---- being cut off ----

/// Lease 3 s, heartbeats every 0.5 s; `speaking` beat and the coordinator ticks until `until`.
class IsolationTest : public ::testing::Test {
 protected:
  static constexpr double kTick = 0.25;
  NodeId join(const NodeInfo& node) { return *membership_.join(node, at(now_)); }
  std::vector<NodeId> live(double until, const std::vector<NodeId>& speaking) {
    std::vector<NodeId> gone;
    for (now_ += kTick; now_ <= until; now_ += kTick) {
      for (const NodeId id : speaking) membership_.heard_from(id, at(now_));
      for (const Departure& departure : membership_.expire(at(now_))) {
        gone.push_back(departure.node.id);
      }
    }
    now_ -= kTick;
    return gone;
  }
  Membership membership_{MembershipOptions{}};
  double now_ = 0;
};

TEST_F(IsolationTest, NobodyIsLostWhileNobodyIsHeard) {
  const NodeId a = join(worker("a:1"));
  const NodeId b = join(server("b:1"));
  EXPECT_THAT(live(5, {a, b}), IsEmpty());
  EXPECT_THAT(live(35, {}), IsEmpty());
  EXPECT_TRUE(membership_.isolated_since());
  EXPECT_THAT(live(36, {a, b}), IsEmpty());
  EXPECT_FALSE(membership_.isolated_since());
  EXPECT_THAT(live(60, {a, b}), IsEmpty());
}

TEST_F(IsolationTest, AfterItEverybodyHasTimeToComeBack) {
  const NodeId a = join(worker("a:1"));
  const NodeId b = join(worker("b:1"));
  live(5, {a, b});
  live(35, {});
  EXPECT_THAT(live(44, {a}), IsEmpty()) << "b may take 10 s";
  EXPECT_THAT(live(60, {a, b}), IsEmpty());
}

TEST_F(IsolationTest, ADeathAtTheSameTimeIsNoticedAfterwards) {
  const NodeId a = join(worker("a:1"));
  const NodeId b = join(worker("b:1"));
  const NodeId c = join(server("c:1"));
  live(5, {a, b, c});
  live(35, {});
  EXPECT_THAT(live(45, {a, c}), IsEmpty());
  EXPECT_THAT(live(46, {a, c}), ::testing::ElementsAre(b));
}

TEST_F(IsolationTest, OneOfTwoThatIsSilentIsLostInOneLease) {
  const NodeId a = join(worker("a:1"));
  const NodeId b = join(server("b:1"));
  live(5, {a, b});
  EXPECT_THAT(live(8, {a}), IsEmpty());
  EXPECT_THAT(live(8.5, {a}), ::testing::ElementsAre(b));
}

TEST_F(IsolationTest, OfASingleMemberTheLeaseDecides) {
  const NodeId a = join(worker("a:1"));
  live(5, {a});
  EXPECT_THAT(live(8, {}), IsEmpty());
  EXPECT_THAT(live(8.5, {}), ::testing::ElementsAre(a));
}

TEST_F(IsolationTest, WhoseStreamBrokeIsNoWitness) {
  const NodeId a = join(worker("a:1"));
  const NodeId b = join(server("b:1"));
  live(5, {a, b});
  membership_.detach(a, "broke its stream", at(5));
  membership_.detach(b, "broke its stream", at(5));
  EXPECT_THAT(live(8, {}), IsEmpty());
  EXPECT_THAT(live(8.5, {}), ::testing::ElementsAre(a, b)) << "killed, both of them";
}

/// No machine answers our system any more, so it ends the streams itself; that is no message of a
/// node.
TEST_F(IsolationTest, StreamsThatOurOwnSystemGivesUpDoNotEndIt) {
  const NodeId a = join(worker("a:1"));
  const NodeId b = join(server("b:1"));
  live(5, {a, b});
  EXPECT_THAT(live(25, {}), IsEmpty());
  membership_.detach(a, "ended its stream", at(25));
  membership_.detach(b, "ended its stream", at(25.2));
  EXPECT_THAT(live(300, {}), IsEmpty());
  EXPECT_TRUE(membership_.isolated_since());
  NodeInfo back = worker("a:1");
  back.id = a;
  EXPECT_TRUE(membership_.attach(back, at(300)));
  EXPECT_FALSE(membership_.isolated_since());
  EXPECT_THAT(live(309, {a}), IsEmpty()) << "b may take 10 s";
  EXPECT_THAT(live(311, {a}), ::testing::ElementsAre(b));
}

TEST_F(IsolationTest, ButThoseThatEndSoonerDo) {
  const NodeId a = join(worker("a:1"));
  const NodeId b = join(server("b:1"));
  live(5, {a, b});
  EXPECT_THAT(live(10, {}), IsEmpty()) << "frozen, both of them";
  membership_.detach(a, "ended its stream", at(10));
  membership_.detach(b, "ended its stream", at(10));
  EXPECT_FALSE(membership_.isolated_since());
  EXPECT_THAT(live(21, {}), ::testing::ElementsAre(a, b)) << "and killed";
}

TEST_F(IsolationTest, ShortSilenceOfAllDelaysAndForgetsNothing) {
  const NodeId a = join(worker("a:1"));
  const NodeId b = join(server("b:1"));
  const NodeId dead = join(server("c:1"));
  live(5, {a, b, dead});
  // No messages arrive in every other two seconds: a busy machine.
  std::vector<NodeId> gone;
  for (double time = 5; time < 17 && gone.empty(); time += 4) {
    gone = live(time + 2, {a, b});
    if (gone.empty()) gone = live(time + 4, {});
  }
  EXPECT_THAT(gone, ::testing::ElementsAre(dead));
  EXPECT_LE(now_, 13);
}

TEST_F(IsolationTest, OnlyTheJobsMembersAreWitnesses) {
  const NodeId a = join(worker("a:1"));
  const NodeId b = join(server("b:1"));
  const NodeId spare = join(worker("c:1"));
  membership_.set_job({a, b});
  live(5, {a, b, spare});
  EXPECT_THAT(live(35, {spare}), IsEmpty()) << "it may stand beside the coordinator";
  live(36, {a, b, spare});
  membership_.set_job({});
  EXPECT_THAT(live(50, {spare}), ::testing::ElementsAre(a, b));
}

TEST_F(IsolationTest, NobodyIsWaitedForForEver) {
  join(worker("a:1"));
  join(server("b:1"));
  EXPECT_THAT(live(3600, {}), IsEmpty());
  EXPECT_THAT(live(3603, {}), SizeIs(2));
}

TEST_F(IsolationTest, AFrozenCoordinatorWakesAndLosesNobody) {
  const NodeId a = join(worker("a:1"));  // one alone: its own sleep the coordinator can tell
  live(5, {a});
  now_ = 60;
  EXPECT_THAT(live(69, {}), IsEmpty());
  EXPECT_THAT(live(72, {}), ::testing::ElementsAre(a));
}

TEST_F(IsolationTest, WhatIsHeardBeforeTheFirstTickAfterASleepCostsTheOthersNothing) {
  const NodeId a = join(worker("a:1"));
  const NodeId b = join(worker("b:1"));
  live(5, {a, b});
  now_ = 60;
  EXPECT_TRUE(membership_.heard_from(a, at(now_)));
  EXPECT_THAT(live(69, {a}), IsEmpty());
  EXPECT_THAT(live(75, {a}), ::testing::ElementsAre(b));
}

TEST_F(IsolationTest, RestoredMembersAreWaitedForUntilSomebodyComes) {
  NodeInfo a = worker("a:1");
  a.id = NodeId(4);
  NodeInfo b = server("b:1");
  b.id = NodeId(9);
  membership_.restore({a, b}, at(0));
  EXPECT_THAT(live(100, {}), IsEmpty());
  EXPECT_TRUE(membership_.attach(a, at(now_)));
  EXPECT_THAT(live(109, {a.id}), IsEmpty());
  EXPECT_THAT(live(111, {a.id}), ::testing::ElementsAre(b.id));
  EXPECT_EQ(join(worker("c:1")), NodeId(10));
}

TEST_F(IsolationTest, WhoIsBackAfterARestartHasItsLeaseAndNoMore) {
  NodeInfo a = worker("a:1");
  a.id = NodeId(4);
  NodeInfo b = server("b:1");
  b.id = NodeId(9);
  membership_.restore({a, b}, at(0));
  EXPECT_THAT(live(100, {}), IsEmpty());
  EXPECT_TRUE(membership_.attach(a, at(now_)));
  EXPECT_TRUE(membership_.attach(b, at(now_)));
  EXPECT_THAT(live(102.5, {b.id}), IsEmpty());
  EXPECT_THAT(live(104, {b.id}), ::testing::ElementsAre(a.id));
}

TEST_F(IsolationTest, NewcomersAfterARestartEndTheWaitToo) {
  NodeInfo a = worker("a:1");
  a.id = NodeId(4);
  membership_.restore({a}, at(0));
  live(100, {});
  const NodeId fresh = join(worker("a:2"));
  EXPECT_THAT(live(109, {fresh}), IsEmpty());
  EXPECT_THAT(live(111, {fresh}), ::testing::ElementsAre(a.id));
}

TEST(Membership, NamesNodesForPeople) {
  EXPECT_EQ(node_text(server("10.0.0.2:4711")), "server 10.0.0.2:4711");
  EXPECT_EQ(node_text(worker("")), "worker 10.0.0.9, process 12");
}

TEST(MembershipOptions, TheLeaseHoldsTwoHeartbeats) {
  EXPECT_TRUE(validate(MembershipOptions{}).ok());
  EXPECT_FALSE(validate(MembershipOptions{.lease = Milliseconds(900)}).ok());
  EXPECT_FALSE(validate(MembershipOptions{.heartbeat = Milliseconds(0)}).ok());
}

}  // namespace
}  // namespace poseidon::membership_test
