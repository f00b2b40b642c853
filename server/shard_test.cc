#include "server/shard.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "common/float16.h"
#include "common/random.h"
#include "gmock/gmock.h"
#include "tests/support/toy_plan.h"

namespace poseidon {
namespace {

using ::testing::HasSubstr;
using testing_support::message_for;
using testing_support::toy_plan;

constexpr float kRate = 0.5f;

class ShardTest : public ::testing::Test {
 protected:
  ShardTest() { optimizer_.learning_rate = kRate; }

  Shard make(std::uint32_t workers, std::int64_t pending_limit_bytes = kDefaultPendingLimitBytes) {
    return {toy_plan(workers, 1, {6, 2}, 4), ServerIndex(0), optimizer_, &bsp_,
            pending_limit_bytes};
  }
  static std::vector<float> values(const Shard& shard, ChunkId chunk) {
    const FloatBuffer buffer = shard.parameters(chunk);
    return {buffer.floats().begin(), buffer.floats().end()};
  }
  static ChunkDecision send(Shard& shard, ChunkKind kind, std::uint32_t rank, std::uint32_t chunk,
                            Iteration iteration, const std::vector<float>& payload) {
    return shard.on_message(
        message_for(shard.plan(), kind, WorkerRank(rank), ChunkId(chunk), iteration, payload));
  }
  static ChunkDecision push(Shard& shard, std::uint32_t rank, std::uint32_t chunk,
                            Iteration iteration, float value) {
    const auto n = static_cast<std::size_t>(shard.plan().chunks[chunk].elements);
    return send(shard, ChunkKind::kPushGradient, rank, chunk, iteration,
                std::vector<float>(n, value));
  }
  static void initialise(Shard& shard) {
    for (std::uint32_t c = 0; c < shard.plan().chunks.size(); ++c) {
      const auto n = static_cast<std::size_t>(shard.plan().chunks[c].elements);
      const auto decision =
          send(shard, ChunkKind::kInitialise, 0, c, 0, std::vector<float>(n, 10.0f));
      ASSERT_FALSE(decision.objection) << decision.objection.message;
    }
  }

  OptimizerSpec optimizer_;
  BspConsistency bsp_;
};

TEST_F(ShardTest, ACompleteSumMakesOneStepAndGoesToEverybody) {
  Shard shard = make(2);
  initialise(shard);
  const ChunkDecision first = push(shard, 1, 0, 0, 3.0f);
  EXPECT_FALSE(first.objection);
  EXPECT_FALSE(first.delivery);
  EXPECT_EQ(shard.awaited(ChunkId(0)), WorkerRank(0));
  const ChunkDecision second = push(shard, 0, 0, 0, 1.0f);
  ASSERT_TRUE(second.delivery);
  EXPECT_EQ(second.delivery->chunk, ChunkId(0));
  EXPECT_EQ(second.delivery->only, std::nullopt);
  EXPECT_EQ(shard.version(ChunkId(0)), 1);
  EXPECT_EQ(shard.version(ChunkId(1)), 0) << "each chunk by itself";
  EXPECT_EQ(values(shard, ChunkId(0)), std::vector<float>(4, 10.0f - kRate * 2.0f));
}

TEST_F(ShardTest, SumsHaveTheSameBitsInEveryOrderOfArrival) {
  SplitMix64 random(4);
  const std::uint32_t workers = 5;
  std::vector<std::vector<float>> gradients(workers, std::vector<float>(4));
  for (auto& g : gradients) {
    for (float& v : g)
      v = static_cast<float>(random.normal() * std::pow(10.0, random.uniform() * 6));
  }
  std::vector<float> expected;
  std::vector<std::uint32_t> order = {0, 1, 2, 3, 4};
  do {
    Shard shard = make(workers);
    initialise(shard);
    for (const std::uint32_t rank : order) {
      send(shard, ChunkKind::kPushGradient, rank, 0, 0, gradients[rank]);
    }
    ASSERT_EQ(shard.version(ChunkId(0)), 1);
    EXPECT_EQ(shard.pending_bytes(), 0);
    if (expected.empty()) expected = values(shard, ChunkId(0));
    ASSERT_EQ(values(shard, ChunkId(0)), expected);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(ShardTest, AChunkThatStraddlesTensorsStepsEachByItsMultipliers) {
  optimizer_.weight_decay = 0.1;
  optimizer_.momentum = 0.9;
  Plan plan = toy_plan(2, 1, {6, 2}, 4);
  plan.layers[0].tensors = {
      {"weight", 3, {1.0, 1.0}}, {"bias", 2, {2.0, 0.0}}, {"scale", 1, {0.0, 1.0}}};
  Shard shard(plan, ServerIndex(0), optimizer_, &bsp_);
  initialise(shard);
  for (Iteration i = 0; i < 2; ++i) {
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
      push(shard, 1, chunk, i, 3.0f);
      push(shard, 0, chunk, i, 1.0f);
    }
  }
  const auto expected = [this](const StepMultipliers& multipliers) {
    float w = 10.0f, m = 0.0f;
    const float gradient = 4.0f;
    for (Iteration i = 0; i < 2; ++i) {
      apply_optimizer(make_optimizer_step(optimizer_, i, 0.5f, multipliers), {&gradient, 1},
                      {&w, 1}, {&w, 1}, {&m, 1}, {});
    }
    return w;
  };
  const float weight = expected({1.0, 1.0}), bias = expected({2.0, 0.0});
  EXPECT_EQ(values(shard, ChunkId(0)), (std::vector<float>{weight, weight, weight, bias}));
  EXPECT_EQ(values(shard, ChunkId(1)), (std::vector<float>{bias, 10.0f}));
  EXPECT_EQ(values(shard, ChunkId(2)), (std::vector<float>{weight, weight}));
}

/// Steps that wait for the network's norm: chunks 0 and 1 of layer 0, chunk 2 of layer 1.
class HeldBackTest : public ShardTest {
 protected:
  HeldBackTest() {
    optimizer_.clip_norm = 1.0;
    Plan plan = toy_plan(2, 1, {6, 2}, 4);
    plan.norm_scope = NormScope::kNetwork;
    shard_.emplace(plan, ServerIndex(0), optimizer_, &bsp_);
    initialise(*shard_);
  }
  ChunkDecision totals(std::uint32_t rank, std::uint32_t chunk, Iteration iteration,
                       const StepTotals& totals) {
    DecodedChunk message;
    message.header.kind = ChunkKind::kTotals;
    message.header.epoch = shard_->plan().epoch;
    message.header.iteration = iteration;
    message.header.rank = WorkerRank(rank);
    message.header.chunk = ChunkId(chunk);
    message.header.offset = shard_->plan().chunks[chunk].offset;
    payload_ = encode_totals(totals);
    message.payload.pieces = {absl::Span<const std::byte>(
        reinterpret_cast<const std::byte*>(payload_.data()), payload_.size())};
    return shard_->on_message(message);
  }
  std::optional<Shard> shard_;
  std::string payload_;
};

TEST_F(HeldBackTest, AStepWaitsForTheTotals) {
  push(*shard_, 1, 0, 0, 3.0f);
  const ChunkDecision held = push(*shard_, 0, 0, 0, 1.0f);
  ASSERT_TRUE(held.delivery);
  EXPECT_TRUE(held.delivery->norms);
  EXPECT_EQ(held.delivery->only, std::nullopt);
  EXPECT_EQ(shard_->version(ChunkId(0)), 0);
  EXPECT_EQ(shard_->pending_bytes(), 0) << "what waits is in the sum";
  EXPECT_EQ(shard_->norms(ChunkId(0)).iteration, 0);
  EXPECT_THAT(*shard_->norms(ChunkId(0)).parts,
              ::testing::ElementsAre(TensorSquares{4.0 * 4.0, 0.0}));
  const ChunkDecision stepped = totals(0, 0, 0, {.all_gradients = 64.0, .tensors = {{24.0, 0.0}}});
  ASSERT_FALSE(stepped.objection) << stepped.objection.message;
  ASSERT_TRUE(stepped.delivery);
  EXPECT_FALSE(stepped.delivery->norms);
  EXPECT_EQ(shard_->version(ChunkId(0)), 1);
  const float clip = static_cast<float>(0.5 * (1.0 / (8.0 + 1e-6)));  // 1/P1 and clipping
  EXPECT_EQ(values(*shard_, ChunkId(0)), std::vector<float>(4, 10.0f - kRate * (4.0f * clip)));
}

TEST_F(HeldBackTest, RepetitionsGetWhatTheyMissed) {
  push(*shard_, 1, 0, 0, 3.0f);
  EXPECT_FALSE(push(*shard_, 1, 0, 0, 3.0f).delivery);
  push(*shard_, 0, 0, 0, 1.0f);
  const ChunkDecision again = push(*shard_, 1, 0, 0, 3.0f);
  EXPECT_EQ(again.objection.reason, DataRefusal::kDuplicate);
  ASSERT_TRUE(again.delivery);
  EXPECT_TRUE(again.delivery->norms);
  EXPECT_EQ(again.delivery->only, WorkerRank(1));
  const StepTotals good{.all_gradients = 64.0, .tensors = {{24.0, 0.0}}};
  EXPECT_FALSE(totals(0, 0, 0, good).objection);
  const ChunkDecision twice = totals(0, 0, 0, good);
  EXPECT_EQ(twice.objection.reason, DataRefusal::kDuplicate);
  ASSERT_TRUE(twice.delivery);
  EXPECT_FALSE(twice.delivery->norms);
  EXPECT_EQ(shard_->version(ChunkId(0)), 1);
}

TEST_F(HeldBackTest, HostileTotalsAreRefusedAndChangeNothing) {
  const StepTotals good{.all_gradients = 64.0, .tensors = {{24.0, 0.0}}};
  EXPECT_EQ(totals(0, 0, 0, good).objection.reason, DataRefusal::kIteration) << "no gradient yet";
  push(*shard_, 1, 0, 0, 3.0f);
  EXPECT_EQ(totals(0, 0, 0, good).objection.reason, DataRefusal::kIteration);
  push(*shard_, 0, 0, 0, 1.0f);
  EXPECT_EQ(totals(1, 0, 0, good).objection.reason, DataRefusal::kRank);
  EXPECT_EQ(totals(0, 0, 1, good).objection.reason, DataRefusal::kIteration);
  EXPECT_EQ(totals(0, 0, -1, good).objection.reason, DataRefusal::kDuplicate);
  EXPECT_EQ(totals(0, 0, 0, {64.0, {}}).objection.reason, DataRefusal::kSize);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {nan, infinity, -1.0, 15.9}) {
    EXPECT_EQ(totals(0, 0, 0, {bad, {{24.0, 0.0}}}).objection.reason, DataRefusal::kNorm) << bad;
    EXPECT_EQ(totals(0, 0, 0, {64.0, {{bad, 0.0}}}).objection.reason, DataRefusal::kNorm) << bad;
  }
  EXPECT_EQ(shard_->version(ChunkId(0)), 0);
  EXPECT_EQ(values(*shard_, ChunkId(0)), std::vector<float>(4, 10.0f));
  EXPECT_FALSE(totals(0, 0, 0, good).objection) << "and the right ones are still taken";
}

TEST_F(HeldBackTest, ANormThatIsNotFiniteStopsEverything) {
  push(*shard_, 1, 2, 0, std::numeric_limits<float>::infinity());
  const ChunkDecision decision = push(*shard_, 0, 2, 0, 1.0f);
  EXPECT_EQ(decision.objection.reason, DataRefusal::kNotFinite);
  EXPECT_THAT(
      decision.objection.message,
      HasSubstr("the norm of the gradients of iteration 0 is no finite number: layer layer1"));
  EXPECT_EQ(push(*shard_, 0, 0, 0, 1.0f).objection.reason, DataRefusal::kNotFinite);
}

TEST_F(ShardTest, WithoutNormsNobodyTakesTotals) {
  Shard shard = make(2);
  initialise(shard);
  const auto decision = send(shard, ChunkKind::kTotals, 0, 0, 0, {});
  EXPECT_EQ(decision.objection.reason, DataRefusal::kKind);
}

TEST_F(ShardTest, RepetitionsCountOnceAndGetTheirAnswer) {
  Shard shard = make(2);
  initialise(shard);
  push(shard, 0, 0, 0, 1.0f);
  const ChunkDecision twice = push(shard, 0, 0, 0, 1.0f);
  EXPECT_EQ(twice.objection.reason, DataRefusal::kDuplicate);
  EXPECT_FALSE(twice.delivery);
  push(shard, 1, 0, 0, 1.0f);
  const std::vector<float> after = values(shard, ChunkId(0));
  const ChunkDecision late = push(shard, 0, 0, 0, 99.0f);
  EXPECT_EQ(late.objection.reason, DataRefusal::kDuplicate);
  ASSERT_TRUE(late.delivery) << "it may have lost the answer";
  EXPECT_EQ(late.delivery->only, WorkerRank(0));
  EXPECT_EQ(values(shard, ChunkId(0)), after);
  const auto again = send(shard, ChunkKind::kInitialise, 0, 0, 0, std::vector<float>(4, 0.0f));
  EXPECT_EQ(again.objection.reason, DataRefusal::kDuplicate);
  EXPECT_EQ(values(shard, ChunkId(0)), after);
}

TEST_F(ShardTest, WrongMessagesAreRefusedWithTheirReasonAndChangeNothing) {
  Shard shard = make(2);
  EXPECT_EQ(push(shard, 0, 0, 0, 1.0f).objection.reason, DataRefusal::kNotInitialised);
  const auto usurper = send(shard, ChunkKind::kInitialise, 1, 0, 0, std::vector<float>(4, 1.0f));
  EXPECT_EQ(usurper.objection.reason, DataRefusal::kRank);
  initialise(shard);
  EXPECT_EQ(push(shard, 0, 0, 1, 1.0f).objection.reason, DataRefusal::kIteration);
  EXPECT_EQ(push(shard, 2, 0, 0, 1.0f).objection.reason, DataRefusal::kRank);
  EXPECT_EQ(send(shard, ChunkKind::kPull, 0, 0, 2, {}).objection.reason, DataRefusal::kIteration);
  EXPECT_EQ(send(shard, ChunkKind::kParameters, 0, 0, 0, std::vector<float>(4)).objection.reason,
            DataRefusal::kKind);
  EXPECT_EQ(send(shard, ChunkKind::kPushGradient, 0, 0, 0, std::vector<float>(3)).objection.reason,
            DataRefusal::kSize);
  EXPECT_EQ(values(shard, ChunkId(0)), std::vector<float>(4, 10.0f));
  EXPECT_EQ(shard.version(ChunkId(0)), 0);
}

TEST_F(ShardTest, ChunksOfOtherServersAreRefused) {
  Shard shard(toy_plan(1, 2, {8}, 4), ServerIndex(0), optimizer_, &bsp_);
  const auto decision = send(shard, ChunkKind::kPull, 0, 1, 0, {});
  EXPECT_EQ(decision.objection.reason, DataRefusal::kChunk);
  EXPECT_THAT(decision.objection.message, HasSubstr("belongs to server 1"));
}

TEST_F(ShardTest, PullsAreAnsweredNowOrWhenTheVersionExists) {
  Shard shard = make(2);
  EXPECT_FALSE(send(shard, ChunkKind::kPull, 1, 0, 0, {}).delivery);
  initialise(shard);
  const auto decision = send(shard, ChunkKind::kPull, 1, 0, 0, {});
  ASSERT_TRUE(decision.delivery);
  EXPECT_EQ(decision.delivery->only, WorkerRank(1));
}

TEST_F(ShardTest, ParametersThatAreBeingSentAreNotOverwritten) {
  Shard shard = make(1);
  initialise(shard);
  const FloatBuffer held = shard.parameters(ChunkId(0));
  push(shard, 0, 0, 0, 2.0f);
  EXPECT_EQ(held.floats()[0], 10.0f) << "the version that a message refers to";
  EXPECT_EQ(values(shard, ChunkId(0))[0], 9.0f);
}

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
      exact[i] -= kRate * (0.5f * (rounded(first[i]) + rounded(second[i])));
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
  // Nothing goes on, whoever asks and for whatever.
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

TEST_F(ShardTest, MemoryPerParameterIsAsDocumented) {
  const struct {
    OptimizerType type;
    double momentum;
    std::int64_t bytes_per_parameter;
  } cases[] = {{OptimizerType::kSgd, 0.0, 8},
               {OptimizerType::kSgd, 0.9, 12},
               {OptimizerType::kAdam, 0.0, 16},
               {OptimizerType::kAdamW, 0.0, 16}};
  for (const auto& c : cases) {
    optimizer_.type = c.type;
    optimizer_.momentum = c.momentum;
    Shard shard(toy_plan(3, 2, {1000, 500}, 100), ServerIndex(0), optimizer_, &bsp_);
    EXPECT_EQ(shard.memory_bytes(), c.bytes_per_parameter * 800);
    Plan plan = toy_plan(3, 2, {1000, 500}, 100);
    plan.wire_type = ElementType::kBfloat16;
    Shard rounding(plan, ServerIndex(0), optimizer_, &bsp_);
    EXPECT_EQ(rounding.memory_bytes(), (c.bytes_per_parameter + 2) * 800);
    // From the first step on with the version before it.
    const int slots = optimizer_state_slots(optimizer_);
    for (Shard* s : {&shard, &rounding}) {
      const std::int64_t before = s->memory_bytes();
      for (const ChunkId chunk : s->owned_chunks()) {
        const auto n = static_cast<std::size_t>(s->plan().chunks[chunk.value()].elements);
        send(*s, ChunkKind::kInitialise, 0, chunk.value(), 0, std::vector<float>(n, 1.0f));
        for (std::uint32_t rank = 0; rank < 3; ++rank) {
          send(*s, ChunkKind::kPushGradient, rank, chunk.value(), 0, std::vector<float>(n, 1.0f));
        }
        ASSERT_EQ(s->version(chunk), 1);
      }
      EXPECT_EQ(s->memory_bytes(), before + 4 * (1 + slots) * 800);
    }
  }
}

TEST_F(ShardTest, TheVersionBeforeTheLastStepIsStillThere) {
  optimizer_.momentum = 0.9;
  Shard shard = make(2);
  initialise(shard);
  EXPECT_EQ(shard.held().oldest, 0);
  EXPECT_EQ(shard.held().newest, 0);
  const auto step = [&](std::uint32_t chunk, Iteration iteration) {
    push(shard, 0, chunk, iteration, 1.0f);
    push(shard, 1, chunk, iteration, 3.0f);
  };
  const std::vector<ChunkId> owned = shard.owned_chunks();
  for (const ChunkId chunk : owned) step(chunk.value(), 0);
  std::map<std::uint32_t, std::vector<float>> after_one;
  for (const ChunkId chunk : owned) after_one[chunk.value()] = values(shard, chunk);
  step(owned[0].value(), 1);  // then a worker is lost: the other chunks never get there
  EXPECT_EQ(shard.held().oldest, 1);
  EXPECT_EQ(shard.held().newest, 1);
  EXPECT_FALSE(shard.freeze_held(2).ok());
  ASSERT_TRUE(shard.freeze_held(1).ok());
  const std::vector<FrozenChunk> frozen = shard.take_frozen();
  ASSERT_EQ(frozen.size(), owned.size());
  for (const FrozenChunk& chunk : frozen) {
    EXPECT_EQ(chunk.version, 1);
    EXPECT_TRUE(std::ranges::equal(chunk.parameters.floats(), after_one[chunk.chunk.value()]));
    EXPECT_EQ(chunk.state0.floats()[0], 2.0f) << "the momentum after one mean gradient";
  }
  ASSERT_TRUE(shard.freeze_held(1).ok());
  EXPECT_TRUE(shard.take_frozen().empty()) << "a piece goes to the disk once";
}

TEST_F(ShardTest, AFrozenVersionIsNeverWrittenOver) {
  Shard shard = make(1);
  initialise(shard);
  shard.freeze_every(1);
  std::vector<FrozenChunk> held;
  std::vector<std::vector<float>> expected;
  for (Iteration i = 0; i < 5; ++i) {
    push(shard, 0, 0, i, 1.0f);
    for (FrozenChunk& chunk : shard.take_frozen()) held.push_back(std::move(chunk));
    expected.push_back(values(shard, ChunkId(0)));
  }
  ASSERT_EQ(held.size(), 5u);
  for (std::size_t i = 0; i < held.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(held[i].parameters.floats(), expected[i])) << i;
  }
}

TEST_F(ShardTest, WhoIsAheadWaitsOnceItsShareAndTheCommonOneAreHeldAndTheLastOneNever) {
  Shard shard = make(3, /*pending_limit_bytes=*/24);  // 4 a rank, and 12 for all
  initialise(shard);
  push(shard, 2, 0, 0, 1.0f);
  EXPECT_EQ(shard.pending_bytes(), 16);
  EXPECT_FALSE(shard.may_read(WorkerRank(2))) << "4 and 12";
  EXPECT_TRUE(shard.may_read(WorkerRank(1))) << "its share is free";
  push(shard, 1, 1, 0, 1.0f);
  EXPECT_EQ(shard.pending_bytes(), 24);
  EXPECT_FALSE(shard.may_read(WorkerRank(1))) << "others fill the common share";
  EXPECT_TRUE(shard.may_read(WorkerRank(0)));
  push(shard, 0, 1, 0, 1.0f);
  EXPECT_EQ(shard.pending_bytes(), 16) << "chunk 1 of rank 1 is summed";
  EXPECT_TRUE(shard.may_read(WorkerRank(1)));
  EXPECT_FALSE(shard.may_read(WorkerRank(2)));
  push(shard, 1, 0, 0, 1.0f);
  push(shard, 0, 0, 0, 1.0f);
  EXPECT_EQ(shard.pending_bytes(), 0);
  EXPECT_TRUE(shard.may_read(WorkerRank(2)));
}

TEST_F(ShardTest, WhoeverIsAheadAloneMayHoldTheCommonShareToo) {
  Shard shard = make(3, /*pending_limit_bytes=*/60);  // 10 a rank, and 30 for all
  initialise(shard);
  push(shard, 2, 0, 0, 1.0f);
  push(shard, 2, 1, 0, 1.0f);
  EXPECT_EQ(shard.pending_bytes(), 24);
  EXPECT_TRUE(shard.may_read(WorkerRank(2))) << "14 of 30";
}

TEST_F(ShardTest, WhoIsLowestAmongThoseBehindMaySendWhateverIsHeldForIt) {
  Shard shard = make(3, /*pending_limit_bytes=*/3);
  initialise(shard);
  for (std::uint32_t c = 0; c < 3; ++c) push(shard, 2, c, 0, 1.0f);
  push(shard, 1, 0, 0, 1.0f);
  EXPECT_FALSE(shard.may_read(WorkerRank(1)));
  for (std::uint32_t c = 1; c < 3; ++c) push(shard, 0, c, 0, 1.0f);
  EXPECT_TRUE(shard.may_read(WorkerRank(0)));
  EXPECT_FALSE(shard.may_read(WorkerRank(1))) << "chunk 0 of it waits for rank 0";
  push(shard, 0, 0, 0, 1.0f);
  EXPECT_TRUE(shard.may_read(WorkerRank(1)));
}

// ---- checkpoints ----

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
}  // namespace poseidon
