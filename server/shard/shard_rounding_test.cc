// A server that sends 16-bit values to its workers still steps exact ones.

#include <limits>
#include <string>
#include <vector>

#include "common/tensor/float16.h"
#include "gmock/gmock.h"
#include "server/shard/shard_test_fixture.h"

namespace poseidon::shard_rounding_test {
namespace {

using ::testing::HasSubstr;
using testing_support::message_for;
using testing_support::toy_plan;

/// Clusters whose gradients and parameters travel in 16 bits.
class RoundingShard : public ShardTest, public ::testing::WithParamInterface<ElementType> {
 protected:
  Shard make(std::uint32_t workers) {
    Plan plan = toy_plan(workers, 1, {6, 2}, 4);
    plan.wire_type = GetParam();
    return {plan, ServerIndex(0), optimizer_, &bsp_};
  }
  static float rounded(float value) {
    return GetParam() == ElementType::kBfloat16 ? from_bfloat16(to_bfloat16(value))
                                                : from_float16(to_float16(value));
  }
  /// What a worker would read.
  static std::vector<float> sent(const Shard& shard, std::uint32_t chunk, bool exact = false) {
    const ChunkPayload payload = shard.payload(ChunkId(chunk), exact);
    EXPECT_EQ(payload.type, exact ? ElementType::kFloat32 : GetParam());
    Bytes bytes;
    bytes.pieces = {payload.bytes};
    std::vector<float> floats(static_cast<std::size_t>(shard.plan().chunks[chunk].elements));
    copy_payload(bytes, floats, payload.type);
    return floats;
  }
};

TEST_P(RoundingShard, StepsTheExactParametersAndSendsRoundedOnes) {
  Shard shard = make(2);
  const std::vector<float> initial = {1.0f, 0.1f, -3.3333f, 1e-3f};
  ASSERT_FALSE(send(shard, ChunkKind::kInitialise, 0, 0, 0, initial).objection);
  EXPECT_EQ(values(shard, ChunkId(0)), initial) << "the start is exact";
  const auto expect_sent = [&](const std::vector<float>& exact) {
    EXPECT_EQ(values(shard, ChunkId(0)), exact);
    EXPECT_EQ(sent(shard, 0, /*exact=*/true), exact);
    const std::vector<float> read = sent(shard, 0);
    for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_EQ(read[i], rounded(exact[i])) << i;
  };
  expect_sent(initial);
  std::vector<float> exact = initial;
  for (Iteration iteration = 0; iteration < 3; ++iteration) {
    const std::vector<float> first = {0.1f, 1e-5f, 7.7f, 0.0f};
    const std::vector<float> second = {1.3f, -1e-5f, 0.7f, 1e-4f};
    send(shard, ChunkKind::kPushGradient, 1, 0, iteration, second);
    ASSERT_TRUE(send(shard, ChunkKind::kPushGradient, 0, 0, iteration, first).delivery);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      exact[i] -= kLearningRate * (0.5f * (rounded(first[i]) + rounded(second[i])));
    }
    expect_sent(exact);
  }
}

TEST_P(RoundingShard, CopiesThatAreBeingSentAreNotOverwritten) {
  Shard shard = make(1);
  initialise(shard);
  const std::byte* const before = shard.payload(ChunkId(0), false).bytes.data();
  {
    const ChunkPayload held = shard.payload(ChunkId(0), false);
    const std::vector<std::byte> bytes(held.bytes.begin(), held.bytes.end());
    push(shard, 0, 0, 0, 2.0f);
    EXPECT_TRUE(std::ranges::equal(held.bytes, bytes)) << "the version that a message refers to";
    EXPECT_EQ(sent(shard, 0)[0], 9.0f);
    EXPECT_NE(shard.payload(ChunkId(0), false).bytes.data(), before);
  }
  const std::byte* const warm = shard.payload(ChunkId(0), false).bytes.data();
  push(shard, 0, 0, 1, 2.0f);
  EXPECT_EQ(shard.payload(ChunkId(0), false).bytes.data(), warm) << "nothing allocated once warm";
  EXPECT_EQ(shard.payload(ChunkId(0), false).bytes.data(),
            shard.payload(ChunkId(0), false).bytes.data())
      << "one copy for all workers";
}

TEST_P(RoundingShard, ExactPullsAreAnsweredExactlyAndOnlyForWhatExists) {
  Shard shard = make(1);
  initialise(shard);
  DecodedChunk pull = message_for(shard.plan(), ChunkKind::kPull, WorkerRank(0), ChunkId(0), 0, {});
  ASSERT_TRUE(shard.on_message(pull).delivery);
  EXPECT_FALSE(shard.on_message(pull).delivery->exact);
  pull.header.element_type = ElementType::kFloat32;
  ASSERT_TRUE(shard.on_message(pull).delivery);
  EXPECT_TRUE(shard.on_message(pull).delivery->exact);
  EXPECT_EQ(shard.on_message(pull).delivery->only, WorkerRank(0));
  pull.header.iteration = 1;
  EXPECT_EQ(shard.on_message(pull).objection.reason, DataRefusal::kIteration);
}

TEST_P(RoundingShard, AGradientBeyondTheRangeStopsTheRunByName) {
  Shard shard = make(2);
  initialise(shard);
  push(shard, 0, 0, 0, 1.0f);
  const auto beyond = std::numeric_limits<float>::infinity();  // what a large one was rounded to
  const ChunkDecision decision = push(shard, 1, 0, 0, beyond);
  EXPECT_FALSE(decision.delivery);
  EXPECT_EQ(decision.objection.reason, DataRefusal::kNotFinite);
  EXPECT_THAT(decision.objection.message,
              HasSubstr("the gradients of iteration 0 of layer layer0"));
  EXPECT_THAT(decision.objection.message, HasSubstr("optimizer.learning_rate"));
  EXPECT_EQ(decision.objection.message.find("set sync.wire_dtype to \"bf16\"") != std::string::npos,
            GetParam() == ElementType::kFloat16);
  // The shard refuses every further message.
  EXPECT_EQ(push(shard, 0, 1, 0, 1.0f).objection.reason, DataRefusal::kNotFinite);
  EXPECT_EQ(send(shard, ChunkKind::kPull, 0, 0, 0, {}).objection.reason, DataRefusal::kNotFinite);
}

TEST_P(RoundingShard, ParametersBeyondTheRangeStopTheRunByName) {
  const float largest = GetParam() == ElementType::kFloat16 ? 65504.0f : 3.38e38f;
  Shard shard = make(1);
  initialise(shard);
  EXPECT_TRUE(send(shard, ChunkKind::kPushGradient, 0, 0, 0, {largest, 0, 0, 0}).delivery);
  EXPECT_TRUE(send(shard, ChunkKind::kPushGradient, 0, 0, 1, {largest, 0, 0, 0}).delivery);
  const ChunkDecision decision = send(shard, ChunkKind::kPushGradient, 0, 0, 2, {largest, 0, 0, 0});
  EXPECT_EQ(decision.objection.reason, DataRefusal::kNotFinite);
  EXPECT_THAT(decision.objection.message,
              HasSubstr("the parameters after iteration 2 of layer layer0"));
}

TEST_P(RoundingShard, InitialParametersBeyondTheRangeStopTheRunByName) {
  Shard shard = make(1);
  const ChunkDecision decision =
      send(shard, ChunkKind::kInitialise, 0, 2, 0, {1.0f, std::numeric_limits<float>::max()});
  EXPECT_EQ(decision.objection.reason, DataRefusal::kNotFinite);
  EXPECT_THAT(decision.objection.message, HasSubstr("the initial parameters of layer layer1"));
}

INSTANTIATE_TEST_SUITE_P(Types, RoundingShard,
                         ::testing::Values(ElementType::kBfloat16, ElementType::kFloat16),
                         [](const auto& test) { return std::string(wire_dtype_name(test.param)); });

}  // namespace
}  // namespace poseidon::shard_rounding_test
