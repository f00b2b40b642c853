// Nodes that the coordinator loses, coordinators that nodes do not find, and the deadlines of both.

#include <string>
#include <thread>

#include "common/threads/mutex.h"
#include "coordinator/service_test_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::service_loss_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(ServiceTest, ADroppedStreamEndsTheEpochAndNamesTheNode) {
  start_with_short_lease();
  FakeNode& server = add_server(FakeNode::Plays::kReady);
  RawNode worker(address_);
  worker.join(join_as(v1::NODE_ROLE_WORKER, "10.0.0.2:4711"));
  ASSERT_TRUE(worker.receive()->has_joined());
  ASSERT_TRUE(submit(1, 1).ok());
  ASSERT_TRUE(worker.receive()->has_assign());
  worker.drop();
  const v1::GetStatusResponse recovering = await_state("recovering");
  EXPECT_THAT(recovering.message(), AllOf(HasSubstr("worker 0 (10.0.0.2:4711) was lost"),
                                          HasSubstr("waits for worker 0")));
  ASSERT_TRUE(server.wait_stop());
  EXPECT_FALSE(server.stops_[0].succeeded());
  EXPECT_THAT(server.stops_[0].reason(), HasSubstr("the job recovers: worker 0"));
  EXPECT_EQ(recovering.workers(0).state(), "lost");
  // Whoever comes takes its place, in a new epoch.
  RawNode other(address_);
  other.join(join_as(v1::NODE_ROLE_WORKER, "10.0.0.3:4711"));
  ASSERT_TRUE(other.receive()->has_joined());
  const auto assigned = other.receive();
  ASSERT_TRUE(assigned->has_assign());
  EXPECT_EQ(assigned->assign().plan().epoch(), 2u);
  EXPECT_FALSE(assigned->assign().has_restore()) << "nothing was trained";
}

TEST_F(ServiceTest, SilenceLongerThanTheLeaseEndsTheEpoch) {
  start_with_short_lease();
  add_server(FakeNode::Plays::kReady);
  RawNode worker(address_);  // joins, then says nothing, its stream stays open
  worker.join(join_as(v1::NODE_ROLE_WORKER, ""));
  ASSERT_TRUE(worker.receive()->has_joined());
  ASSERT_TRUE(submit(1, 1).ok());
  const v1::GetStatusResponse recovering = await_state("recovering");
  EXPECT_THAT(recovering.message(),
              AllOf(HasSubstr("worker 0"), HasSubstr("was silent for"), HasSubstr("lease 1.5 s")));
  const grpc::Status end = worker.end();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(end.error_message(), HasSubstr("was silent"));
}

TEST_F(ServiceTest, AHeartbeatKeepsABusyNodeAlive) {
  start_with_short_lease();
  run_job();
  std::this_thread::sleep_for(Milliseconds(3200));  // more than two leases
  EXPECT_EQ(status().state(), "running");
  const MutexLock lock(nodes_[0]->mutex_);
  EXPECT_GE(nodes_[0]->heartbeats_, 5u);
}

/// /healthz and the watchdog want to hear from the loop every 30 s.
TEST_F(ServiceTest, TheLoopOfRareHeartbeatsTurnsAllTheSame) {
  CoordinatorOptions rare = options();
  rare.cluster.membership = {.lease = std::chrono::seconds(300),
                             .heartbeat = std::chrono::seconds(60)};
  start(rare);
  FakeNode& server = add_server(FakeNode::Plays::kReady);
  MutexLock lock(server.mutex_);
  // Two may still be of the join: the beat that was due, and the one that begins the stream.
  const int before = server.turns_;
  EXPECT_TRUE(server.changed_.wait_for(server.mutex_, kLoopPatience,
                                       [&] { return server.turns_ >= before + 4; }));
  EXPECT_LE(server.heartbeats_, 1u);
}

TEST_F(ServiceTest, ANodeThatNeverJoinsIsSentAway) {
  start_with_short_lease();
  RawNode node(address_);
  EXPECT_EQ(node.end().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(ServiceTest, ANodeGivesUpOnACoordinatorThatNeverComes) {
  const std::string nowhere = "127.0.0.1:" + std::to_string(free_port());
  FakeNode node(nowhere, join_as(v1::NODE_ROLE_WORKER, ""), FakeNode::Plays::kReady,
                Milliseconds(500));
  const absl::Status status = node.wait_result();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no coordinator answered at " + nowhere +
                        " for 0.5 s: is poseidon-coordinator running there?"));
}

}  // namespace
}  // namespace poseidon::service_loss_test
