// The shard with a plan that has leaders: see server/shard/shard.h and Plan::leaders.

#include <vector>

#include "gmock/gmock.h"
#include "server/shard/shard.h"
#include "tests/support/toy_plan.h"

namespace poseidon::shard_groups_test {
namespace {

using ::testing::HasSubstr;

/// Workers 0 and 2, led by 0; 1 and 3, led by 1; 4 alone. One chunk of four floats.
class ShardGroupsTest : public ::testing::Test {
 protected:
  ShardGroupsTest() {
    optimizer_.learning_rate = 0.5;
    Plan plan = testing_support::toy_plan(5, 1, {4}, 4);
    plan.worker_addresses = {"a:1", "b:1", "a:2", "b:2", "c:1"};
    plan.leaders = {WorkerRank(0), WorkerRank(1), WorkerRank(0), WorkerRank(1), WorkerRank(4)};
    shard_.emplace(plan, ServerIndex(0), optimizer_, &bsp_, /*pending_limit_bytes=*/1);
  }
  ChunkDecision send(ChunkKind kind, std::uint32_t rank, float value) {
    return shard_->on_message(testing_support::message_for(
        shard_->plan(), kind, WorkerRank(rank), ChunkId(0), 0, std::vector<float>(4, value)));
  }

  OptimizerSpec optimizer_;
  BspConsistency bsp_;
  std::optional<Shard> shard_;
};

TEST_F(ShardGroupsTest, AStepTakesOneSumOfEachGroupAndDividesByAllWorkers) {
  ASSERT_FALSE(send(ChunkKind::kInitialise, 0, 10.0f).objection);
  EXPECT_FALSE(send(ChunkKind::kPushGradient, 4, 4.0f).delivery);
  EXPECT_FALSE(send(ChunkKind::kPushGradient, 0, 5.0f).delivery);
  EXPECT_EQ(shard_->awaited(ChunkId(0)), WorkerRank(1));
  const ChunkDecision last = send(ChunkKind::kPushGradient, 1, 6.0f);
  ASSERT_TRUE(last.delivery);
  EXPECT_EQ(last.delivery->only, std::nullopt);
  EXPECT_EQ(shard_->version(ChunkId(0)), 1);
  EXPECT_EQ(shard_->parameters(ChunkId(0)).floats()[3], 10.0f - 0.5f * (5.0f + 6.0f + 4.0f) / 5.0f);
}

TEST_F(ShardGroupsTest, WhoGoesThroughARelayIsRefusedHere) {
  ASSERT_FALSE(send(ChunkKind::kInitialise, 0, 10.0f).objection);
  const ChunkDecision decision = send(ChunkKind::kPushGradient, 3, 1.0f);
  EXPECT_EQ(decision.objection.reason, DataRefusal::kRank);
  EXPECT_THAT(decision.objection.message, HasSubstr("worker 3, which the plan sends to worker 1"));
}

TEST_F(ShardGroupsTest, WhoIsAheadWaitsForTheLeadersBeforeIt) {
  ASSERT_FALSE(send(ChunkKind::kInitialise, 0, 10.0f).objection);
  send(ChunkKind::kPushGradient, 4, 4.0f);
  EXPECT_FALSE(shard_->may_read(WorkerRank(4)));
  EXPECT_TRUE(shard_->may_read(WorkerRank(0)));
  send(ChunkKind::kPushGradient, 0, 4.0f);
  send(ChunkKind::kPushGradient, 1, 4.0f);
  EXPECT_TRUE(shard_->may_read(WorkerRank(4)));
}

}  // namespace
}  // namespace poseidon::shard_groups_test
