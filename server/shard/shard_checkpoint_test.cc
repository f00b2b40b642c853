// A server's versions that are frozen for a checkpoint, and going on from one.

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "server/shard/shard_test_fixture.h"

namespace poseidon::shard_checkpoint_test {
namespace {

using ::testing::HasSubstr;

class ShardCheckpointTest : public ShardTest {
 protected:
  ShardCheckpointTest() { optimizer_.momentum = 0.9; }
  static std::vector<float> floats(const FloatBuffer& buffer) {
    return {buffer.floats().begin(), buffer.floats().end()};
  }
  static Bytes bytes_of(const std::vector<float>& values) {
    Bytes bytes;
    bytes.pieces = {as_payload(values)};
    return bytes;
  }
  /// All chunks make the step of `iteration`, with a gradient that differs by chunk.
  static void step_all(Shard& shard, Iteration iteration) {
    for (std::uint32_t c = 0; c < shard.plan().chunks.size(); ++c) {
      const auto decision = push(shard, 0, c, iteration, 1.0f + static_cast<float>(c));
      ASSERT_FALSE(decision.objection) << decision.objection.message;
    }
  }
};

TEST_F(ShardCheckpointTest, FrozenVersionsStayAsTheyWere) {
  Shard shard = make(1);
  initialise(shard);
  shard.freeze_every(2);
  step_all(shard, 0);
  EXPECT_FALSE(shard.has_frozen());
  step_all(shard, 1);
  const std::vector<FrozenChunk> frozen = shard.take_frozen();
  ASSERT_EQ(frozen.size(), 3u);
  EXPECT_FALSE(shard.has_frozen());
  const std::vector<float> parameters = floats(frozen[1].parameters);
  const std::vector<float> momentum = floats(frozen[1].state0);
  EXPECT_EQ(frozen[1].version, 2);
  EXPECT_EQ(frozen[1].chunk, ChunkId(1));
  EXPECT_EQ(parameters, values(shard, ChunkId(1)));
  EXPECT_FLOAT_EQ(momentum[0], 2.0f * 1.9f);
  step_all(shard, 2);
  EXPECT_EQ(floats(frozen[1].parameters), parameters);
  EXPECT_EQ(floats(frozen[1].state0), momentum);
  EXPECT_NE(values(shard, ChunkId(1)), parameters);
}

TEST_F(ShardCheckpointTest, NothingThatIsNoFiniteNumberIsFrozen) {
  Shard shard = make(1);
  initialise(shard);
  shard.freeze_every(2);
  const float infinite = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(push(shard, 0, 0, 0, infinite).objection) << "no checkpoint is due: the loss tells";
  EXPECT_FALSE(push(shard, 0, 1, 0, 1.0f).objection);
  EXPECT_FALSE(push(shard, 0, 1, 1, 1.0f).objection);
  const ChunkDecision decision = push(shard, 0, 0, 1, 1.0f);
  EXPECT_EQ(decision.objection.reason, DataRefusal::kNotFinite);
  EXPECT_THAT(decision.objection.message,
              HasSubstr("the parameters after iteration 1 of layer layer0"));
  ASSERT_EQ(shard.take_frozen().size(), 1u) << "of the other chunk";
}

TEST_F(ShardCheckpointTest, GoesOnFromACheckpointAsIfNothingHadHappened) {
  Shard whole = make(1);
  initialise(whole);
  whole.freeze_every(3);
  for (Iteration i = 0; i < 3; ++i) step_all(whole, i);
  const std::vector<FrozenChunk> frozen = whole.take_frozen();

  Shard again = make(1);
  for (const FrozenChunk& chunk : frozen) {
    const std::vector<float> parameters = floats(chunk.parameters), state = floats(chunk.state0);
    // In two parts, the later one first, as they may come from several stores.
    const std::vector<float> head(parameters.begin(), parameters.begin() + 1);
    const std::vector<float> tail(parameters.begin() + 1, parameters.end());
    ASSERT_TRUE(again.restore(chunk.chunk, 0, 1, bytes_of(tail)).ok());
    ASSERT_TRUE(again.restore(chunk.chunk, 0, 0, bytes_of(head)).ok());
    ASSERT_TRUE(again.restore(chunk.chunk, 1, 0, bytes_of(state)).ok());
  }
  ASSERT_FALSE(again.restored(3));
  EXPECT_EQ(again.version(ChunkId(0)), 3);
  for (Iteration i = 3; i < 6; ++i) {
    step_all(whole, i);
    step_all(again, i);
  }
  for (const std::uint32_t c : {0u, 1u, 2u}) {
    EXPECT_EQ(values(again, ChunkId(c)), values(whole, ChunkId(c)));
  }
}

TEST_F(ShardCheckpointTest, RefusesWhatDoesNotFitTheChunk) {
  Shard shard = make(1);  // chunks of 4, 2 and 2 elements
  const std::vector<float> two = {1.0f, 2.0f};
  EXPECT_TRUE(shard.restore(ChunkId(0), 0, 2, bytes_of(two)).ok());
  EXPECT_FALSE(shard.restore(ChunkId(0), 0, 3, bytes_of(two)).ok());
  EXPECT_FALSE(shard.restore(ChunkId(0), 0, -1, bytes_of(two)).ok());
  EXPECT_FALSE(shard.restore(ChunkId(0), 2, 0, bytes_of(two)).ok()) << "momentum has one slot";
  EXPECT_FALSE(shard.restore(ChunkId(0), 3, 0, bytes_of(two)).ok());
  EXPECT_FALSE(shard.restore(ChunkId(9), 0, 0, bytes_of(two)).ok());
  initialise(shard);
  EXPECT_FALSE(shard.restore(ChunkId(0), 0, 0, bytes_of(two)).ok()) << "it trains already";
}

// A step looks only where it knows that its version is wanted.
TEST_F(ShardCheckpointTest, NorIsWhatIsWantedAfterItsStep) {
  Shard shard = make(1);
  initialise(shard);
  step_all(shard, 0);
  EXPECT_FALSE(push(shard, 0, 0, 1, std::numeric_limits<float>::infinity()).objection);
  const absl::Status late = shard.freeze_at(2);
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(late.message()), HasSubstr("hold values that are infinite"));
  EXPECT_FALSE(shard.has_frozen());
  EXPECT_TRUE(shard.freeze_held(1).ok()) << "the version before is good";
  (void)shard.take_frozen();
  ASSERT_FALSE(push(shard, 0, 1, 1, 1.0f).objection);
  ASSERT_FALSE(push(shard, 0, 2, 1, 1.0f).objection);
  EXPECT_FALSE(shard.freeze_held(2).ok());
  EXPECT_FALSE(shard.has_frozen());
}

TEST_F(ShardCheckpointTest, FreezesOnceAtAnAnnouncedVersion) {
  Shard shard = make(1);
  initialise(shard);
  step_all(shard, 0);
  EXPECT_FALSE(shard.freeze_at(0).ok()) << "that version is gone";
  ASSERT_TRUE(shard.freeze_at(2).ok());
  EXPECT_TRUE(shard.freeze_at(2).ok()) << "it waits already";
  ASSERT_FALSE(push(shard, 0, 2, 1, 1.0f).objection);
  EXPECT_EQ(shard.take_frozen().size(), 1u);
  ASSERT_FALSE(push(shard, 0, 0, 1, 1.0f).objection);
  ASSERT_FALSE(push(shard, 0, 1, 1, 1.0f).objection);
  EXPECT_EQ(shard.take_frozen().size(), 2u);
  ASSERT_TRUE(shard.freeze_at(2).ok());
  EXPECT_FALSE(shard.has_frozen()) << "a piece goes to the disk once";
  step_all(shard, 2);
  ASSERT_TRUE(shard.freeze_at(3).ok()) << "the version that all are at can be had at once";
  EXPECT_EQ(shard.take_frozen().size(), 3u);
  step_all(shard, 3);
  EXPECT_FALSE(shard.has_frozen());
}

// A request during the first iteration after it: the versions that still exist are no checkpoint of
// this epoch.
TEST_F(ShardCheckpointTest, TheRestoredVersionIsNotFrozen) {
  Shard shard = make(1);
  ASSERT_FALSE(shard.restored(4));
  shard.freeze_every(2);
  ASSERT_FALSE(push(shard, 0, 0, 4, 1.0f).objection);
  ASSERT_TRUE(shard.freeze_at(5).ok());
  const std::vector<FrozenChunk> frozen = shard.take_frozen();
  ASSERT_EQ(frozen.size(), 1u);
  EXPECT_EQ(frozen[0].version, 5);
  EXPECT_EQ(shard.freeze_at(4).code(), absl::StatusCode::kOutOfRange) << "too late";
}

// One server was late for version 2, this one not yet: the coordinator asks both for 3.
TEST_F(ShardCheckpointTest, ALaterVersionTakesThePlaceOfOneThatWaits) {
  Shard shard = make(1);
  initialise(shard);
  step_all(shard, 0);
  ASSERT_TRUE(shard.freeze_at(2).ok());
  ASSERT_FALSE(push(shard, 0, 2, 1, 1.0f).objection);
  EXPECT_EQ(shard.take_frozen().size(), 1u) << "before anybody was late";
  ASSERT_TRUE(shard.freeze_at(3).ok());
  EXPECT_FALSE(shard.freeze_at(2).ok()) << "not back again";
  ASSERT_FALSE(push(shard, 0, 0, 1, 1.0f).objection);
  ASSERT_FALSE(push(shard, 0, 1, 1, 1.0f).objection);
  EXPECT_FALSE(shard.has_frozen()) << "nobody wants version 2";
  step_all(shard, 2);
  EXPECT_EQ(shard.take_frozen().size(), 3u);
  step_all(shard, 3);
  EXPECT_FALSE(shard.has_frozen());
}

}  // namespace
}  // namespace poseidon::shard_checkpoint_test
