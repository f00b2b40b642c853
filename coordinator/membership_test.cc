#include "coordinator/membership.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon {
namespace {

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
  membership.expire(at(3.5));
  EXPECT_TRUE(membership.join(server("a:1"), at(3.6)).ok());
}

TEST(Membership, AFullClusterRefuses) {
  Membership membership({.max_nodes = 2});
  ASSERT_TRUE(membership.join(worker(""), at(0)).ok());
  ASSERT_TRUE(membership.join(worker(""), at(0)).ok());
  EXPECT_EQ(membership.join(worker(""), at(0)).status().code(),
            absl::StatusCode::kResourceExhausted);
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
}  // namespace poseidon
