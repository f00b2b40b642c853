// A server's results have the same bits however its loops are split, and on however many threads.

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/threads/thread_team.h"
#include "common/wire/norm_wire.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_fixture.h"
#include "tests/support/teams.h"

namespace poseidon::shard_team_test {
namespace {

using testing_support::message_for;
using testing_support::OddTeam;
using testing_support::toy_plan;
using testing_support::WholeTeam;

constexpr Iteration kIterations = 2;
constexpr std::uint32_t kWorkers = 3;

struct Case {
  std::string name;
  OptimizerSpec optimizer;
  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }
};

std::vector<Case> cases() {
  OptimizerSpec sgd;
  sgd.learning_rate = 0.05;
  sgd.weight_decay = 1e-3;
  OptimizerSpec momentum = sgd;
  momentum.momentum = 0.9;
  OptimizerSpec clipped = momentum;
  clipped.nesterov = true;
  clipped.clip_norm = 0.5;
  OptimizerSpec adam = sgd;
  adam.type = OptimizerType::kAdam;
  OptimizerSpec adamw = sgd;
  adamw.type = OptimizerType::kAdamW;
  OptimizerSpec lars = momentum;
  lars.type = OptimizerType::kLars;
  return {{"sgd", sgd},   {"momentum", momentum}, {"clipped", clipped},
          {"adam", adam}, {"adamw", adamw},       {"lars", lars}};
}

class SplitShard : public ::testing::TestWithParam<std::tuple<Case, ElementType, std::uint32_t>> {
 protected:
  const OptimizerSpec& optimizer() const { return std::get<0>(GetParam()).optimizer; }

  /// Chunks of one range or fewer and of several, none of which ends with a range; tensors that end
  /// anywhere.
  Plan plan() const {
    Plan plan = toy_plan(std::get<2>(GetParam()), 1, {60'001, 17}, 40'003);
    plan.wire_type = std::get<1>(GetParam());
    plan.norm_scope = norm_scope(optimizer());
    plan.layers[0].tensors = {
        {.name = "weight", .elements = 30'001, .multipliers = {}},
        {.name = "fixed", .elements = 9'000, .multipliers = {.learning_rate = 0.0}},
        {.name = "bias", .elements = 21'000, .multipliers = {.learning_rate = 2.0}}};
    return plan;
  }

  static std::vector<float> random_floats(SplitMix64& random, std::int64_t elements, float scale) {
    std::vector<float> floats(static_cast<std::size_t>(elements));
    for (float& value : floats) value = (random.uniform() - 0.5f) * scale;
    return floats;
  }

  /// Its payload as gRPC may give it: in pieces of odd sizes at odd addresses.
  static void cut(SplitMix64& random, Bytes& payload) {
    const absl::Span<const std::byte> whole = payload.pieces.front();
    auto memory = std::make_shared<std::vector<std::byte>>(2 * whole.size() + 16);
    Bytes bytes;
    std::byte* to = memory->data() + 1;
    for (std::size_t at = 0; at < whole.size();) {
      const std::size_t size = std::min<std::size_t>(1 + random.below(30'000), whole.size() - at);
      std::memcpy(to, whole.data() + at, size);
      bytes.pieces.emplace_back(to, size);
      to += size + 1;
      at += size;
    }
    bytes.owner = std::move(memory);
    payload = std::move(bytes);
  }

  static void note(std::string& record, absl::Span<const std::byte> bytes) {
    record.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  /// What workers get of the shard.
  static void note(std::string& record, Shard& shard) {
    for (const ChunkId chunk : shard.owned_chunks()) {
      note(record, shard.payload(chunk, /*exact=*/false).bytes);
      note(record, shard.payload(chunk, /*exact=*/true).bytes);
    }
  }

  /// What workers send, by iteration; those of a chunk in a random order.
  void SetUp() override {
    SplitMix64 random(2026);
    const Plan plan = this->plan();
    const auto add = [&](std::vector<DecodedChunk>& to, ChunkKind kind, std::uint32_t rank,
                         std::uint32_t chunk, Iteration iteration, float scale) {
      to.push_back(message_for(plan, kind, WorkerRank(rank), ChunkId(chunk), iteration,
                               random_floats(random, plan.chunks[chunk].elements, scale)));
      cut(random, to.back().payload);
    };
    std::vector<std::uint32_t> ranks(plan.workers());
    std::iota(ranks.begin(), ranks.end(), 0u);
    for (std::uint32_t chunk = 0; chunk < plan.chunks.size(); ++chunk) {
      add(initial_, ChunkKind::kInitialise, 0, chunk, 0, 1.0f);
      for (Iteration iteration = 0; iteration <= kIterations; ++iteration) {
        for (std::size_t i = ranks.size(); i > 1; --i) {
          std::swap(ranks[i - 1], ranks[random.below(i)]);
        }
        for (const std::uint32_t rank : ranks) {
          add(pushes_[static_cast<std::size_t>(iteration)], ChunkKind::kPushGradient, rank, chunk,
              iteration, 2.0f);
        }
      }
    }
  }

  /// The totals of a step that is held back, of this chunk alone.
  static DecodedChunk totals(const Shard& shard, ChunkId chunk, Iteration iteration,
                             std::string& record) {
    StepTotals totals;
    for (const TensorSquares& part : *shard.norms(chunk).parts) {
      note(record, std::as_bytes(std::span(&part, 1)));
      totals.all_gradients += part.gradient;
      totals.tensors.push_back(part);
    }
    if (shard.plan().norm_scope != NormScope::kNetwork) totals.all_gradients = 0.0;
    DecodedChunk message =
        message_for(shard.plan(), ChunkKind::kTotals, WorkerRank(0), chunk, iteration, {});
    auto text = std::make_shared<std::string>(encode_totals(totals));
    message.payload.pieces.emplace_back(reinterpret_cast<const std::byte*>(text->data()),
                                        text->size());
    message.payload.owner = text;
    return message;
  }

  void iterate(Shard& shard, Iteration iteration, std::string& record) const {
    for (const DecodedChunk& push : pushes_[static_cast<std::size_t>(iteration)]) {
      const ChunkDecision decision = shard.on_message(push);
      ASSERT_FALSE(decision.objection) << decision.objection.message;
      if (!decision.delivery || !decision.delivery->norms) continue;
      const ChunkId chunk = push.header.chunk;
      const Objection objection =
          shard.on_message(totals(shard, chunk, iteration, record)).objection;
      ASSERT_FALSE(objection) << objection.message;
    }
    note(record, shard);
  }

  /// A run, and another one from its checkpoint: all that comes of them.
  std::string run(Team* team) const {
    std::string record;
    Shard shard(plan(), ServerIndex(0), optimizer(), &bsp_, kDefaultPendingLimitBytes, team);
    for (const DecodedChunk& message : initial_) EXPECT_FALSE(shard.on_message(message).objection);
    EXPECT_TRUE(shard.freeze_at(kIterations).ok());
    for (Iteration i = 0; i < kIterations; ++i) iterate(shard, i, record);

    Shard resumed(plan(), ServerIndex(0), optimizer(), &bsp_, kDefaultPendingLimitBytes, team);
    for (const FrozenChunk& frozen : shard.take_frozen()) {
      std::uint32_t slot = 0;
      for (const FloatBuffer* buffer : {&frozen.parameters, &frozen.state0, &frozen.state1}) {
        const Bytes values{.pieces = {as_payload(buffer->floats())}, .owner = buffer->owner()};
        note(record, values.pieces.front());
        EXPECT_TRUE(resumed.restore(frozen.chunk, slot++, 0, values).ok());
      }
    }
    EXPECT_FALSE(resumed.restored(kIterations));
    iterate(resumed, kIterations, record);
    return record;
  }

  std::vector<DecodedChunk> initial_;
  std::array<std::vector<DecodedChunk>, kIterations + 1> pushes_;
  BspConsistency bsp_;
};

TEST_P(SplitShard, HasTheSameBitsHoweverChunksAreSplit) {
  WholeTeam whole;
  const std::string expected = run(&whole);
  ASSERT_GT(expected.size(), 60'018 * sizeof(float) * (kIterations + 1));
  EXPECT_TRUE(run(sequential_team()) == expected);
  OddTeam odd;
  EXPECT_TRUE(run(&odd) == expected);
  for (const int threads : {1, 2, 3, 5}) {
    ThreadTeam team(threads);
    EXPECT_TRUE(run(&team) == expected) << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, SplitShard,
                         ::testing::Combine(::testing::ValuesIn(cases()),
                                            ::testing::Values(ElementType::kFloat32,
                                                              ElementType::kBfloat16,
                                                              ElementType::kFloat16),
                                            ::testing::Values(1u, kWorkers)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" +
                                  std::string(wire_dtype_name(std::get<1>(test.param))) + "_" +
                                  std::to_string(std::get<2>(test.param)) + "_workers";
                         });

/// The message about values that cannot be sent does not depend on the thread that found them, or
/// on other values.
class SplitRefusal : public ShardTest {
 protected:
  std::string refusal(Team* team, float gradient, std::size_t at, float frozen_gradient) {
    constexpr std::int64_t kElements = 100'000;
    Plan plan = toy_plan(1, 1, {kElements}, kElements);
    plan.wire_type = ElementType::kBfloat16;
    plan.layers[0].tensors = {
        {.name = "weight", .elements = kElements / 2, .multipliers = {}},
        {.name = "fixed", .elements = kElements / 2, .multipliers = {.learning_rate = 0.0}}};
    Shard shard(plan, ServerIndex(0), optimizer_, &bsp_, kDefaultPendingLimitBytes, team);
    initialise(shard);
    std::vector<float> gradients(kElements, 0.0f);
    gradients[at] = gradient;
    gradients[kElements / 2] = frozen_gradient;
    return send(shard, ChunkKind::kPushGradient, 0, 0, 0, gradients).objection.message;
  }
};

TEST_F(SplitRefusal, SaysWhatItWouldSayOfTheWholeChunk) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  optimizer_.learning_rate = 1e38;
  WholeTeam whole;
  OddTeam odd;
  ThreadTeam threads(3);
  for (Team* const team : {static_cast<Team*>(&whole), sequential_team(), static_cast<Team*>(&odd),
                           static_cast<Team*>(&threads)}) {
    for (const std::size_t at : {std::size_t{3}, std::size_t{49'999}}) {
      EXPECT_THAT(refusal(team, kNan, at, 0.0f), ::testing::StartsWith("the gradients of"));
      EXPECT_THAT(refusal(team, 1e3f, at, kNan),
                  ::testing::StartsWith("the parameters after iteration 0"))
          << "nobody steps with the gradient of a tensor that is fixed";
      EXPECT_EQ(refusal(team, 0.0f, at, kNan), "");
    }
  }
}

}  // namespace
}  // namespace poseidon::shard_team_test
