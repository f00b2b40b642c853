#include "server/shard/shard.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "server/shard/shard_test_fixture.h"

namespace poseidon::shard_test {
namespace {

using ::testing::HasSubstr;
using testing_support::toy_plan;

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
  EXPECT_EQ(values(shard, ChunkId(0)), std::vector<float>(4, 10.0f - kLearningRate * 2.0f));
}

TEST_F(ShardTest, SaysWhoseGradientsItLacks) {
  Shard shard = make(3);
  ASSERT_FALSE(shard.awaited().empty());
  EXPECT_EQ(shard.awaited()[0].ranks, std::vector{WorkerRank(0)}) << "the initial parameters";
  initialise(shard);
  EXPECT_TRUE(shard.awaited().empty()) << "all may compute";
  push(shard, 1, 1, 0, 3.0f);
  ASSERT_EQ(shard.awaited().size(), 1u);
  const AwaitedData lacks = shard.awaited()[0];
  EXPECT_EQ(lacks.chunk, ChunkId(1));
  EXPECT_EQ(lacks.layer, LayerIndex(0));
  EXPECT_EQ(lacks.iteration, 0);
  EXPECT_EQ(lacks.server, ServerIndex(0));
  EXPECT_EQ(lacks.ranks, (std::vector{WorkerRank(0), WorkerRank(2)}));
  push(shard, 0, 1, 0, 3.0f);
  push(shard, 2, 1, 0, 3.0f);
  EXPECT_TRUE(shard.awaited().empty());
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
  HeldBackTest() : HeldBackTest(NormScope::kNetwork) {}
  explicit HeldBackTest(NormScope scope) {
    optimizer_.clip_norm = scope == NormScope::kNetwork ? 1.0 : 0.0;
    optimizer_.rates_by_program = scope == NormScope::kProgram;
    Plan plan = toy_plan(2, 1, {6, 2}, 4);
    plan.norm_scope = scope;
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
  EXPECT_EQ(values(*shard_, ChunkId(0)),
            std::vector<float>(4, 10.0f - kLearningRate * (4.0f * clip)));
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

class ProgramRatesTest : public HeldBackTest {
 protected:
  ProgramRatesTest() : HeldBackTest(NormScope::kProgram) {}
  static StepTotals of(double all_gradients, double gradient, double learning_rate) {
    return {.all_gradients = all_gradients,
            .tensors = {{gradient, 0.0}},
            .gradient_scale = 0.5,
            .rates = {{.learning_rate = learning_rate, .weight_decay = 0.0}}};
  }
};

TEST_F(ProgramRatesTest, AStepIsMadeAtTheRatesThatCameWithTheTotals) {
  push(*shard_, 1, 0, 0, 3.0f);
  const ChunkDecision held = push(*shard_, 0, 0, 0, 1.0f);
  ASSERT_TRUE(held.delivery);
  EXPECT_TRUE(held.delivery->norms);
  EXPECT_FALSE(totals(0, 0, 0, of(64.0, 24.0, 0.25)).objection);
  EXPECT_EQ(values(*shard_, ChunkId(0)), std::vector<float>(4, 10.0f - 0.25f * 2.0f * 0.5f));
}

TEST_F(ProgramRatesTest, RatesAheadOfTheGradientsMakeTheStepAtOnce) {
  push(*shard_, 1, 0, 0, 3.0f);
  const ChunkDecision ahead = totals(0, 0, 0, of(0.0, 0.0, 0.25));
  EXPECT_FALSE(ahead.objection) << ahead.objection.message;
  EXPECT_FALSE(ahead.delivery);
  EXPECT_FALSE(totals(0, 0, 0, of(0.0, 0.0, 0.25)).objection) << "again, on another stream";
  const ChunkDecision stepped = push(*shard_, 0, 0, 0, 1.0f);
  ASSERT_TRUE(stepped.delivery);
  EXPECT_FALSE(stepped.delivery->norms);
  EXPECT_EQ(stepped.delivery->only, std::nullopt);
  EXPECT_EQ(shard_->version(ChunkId(0)), 1);
  EXPECT_EQ(shard_->norms(ChunkId(0)).iteration, 0) << "which go out first";
  EXPECT_EQ(values(*shard_, ChunkId(0)), std::vector<float>(4, 10.0f - 0.25f * 2.0f * 0.5f));
  push(*shard_, 1, 0, 1, 3.0f);
  EXPECT_TRUE(push(*shard_, 0, 0, 1, 1.0f).delivery->norms) << "those were of one step alone";
  EXPECT_EQ(shard_->version(ChunkId(0)), 1);
}

TEST_F(ProgramRatesTest, HostileRatesAreRefusedAndChangeNothing) {
  EXPECT_EQ(totals(1, 0, 0, of(0.0, 0.0, 0.25)).objection.reason, DataRefusal::kRank);
  EXPECT_EQ(totals(0, 0, 1, of(0.0, 0.0, 0.25)).objection.reason, DataRefusal::kIteration);
  EXPECT_EQ(totals(0, 0, 0, of(0.0, 0.0, -0.25)).objection.reason, DataRefusal::kNorm);
  EXPECT_EQ(totals(0, 0, 0, of(0.0, 0.0, 1e39)).objection.reason, DataRefusal::kNorm);
  StepTotals none = of(0.0, 0.0, 0.25);
  none.rates.clear();
  EXPECT_EQ(totals(0, 0, 0, none).objection.reason, DataRefusal::kSize);
  push(*shard_, 1, 0, 0, 3.0f);
  EXPECT_TRUE(push(*shard_, 0, 0, 0, 1.0f).delivery->norms) << "no rates are here";
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

}  // namespace
}  // namespace poseidon::shard_test
