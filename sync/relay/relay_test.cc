#include "sync/relay/relay.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "common/base/random.h"
#include "common/tensor/float16.h"
#include "common/threads/thread_team.h"
#include "gmock/gmock.h"
#include "tests/support/toy_plan.h"

namespace poseidon::relay_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<float> read(const ChunkPayload& payload) {
  std::vector<float> values(payload.bytes.size() / element_bytes(payload.type));
  copy_payload({.pieces = {payload.bytes}, .owner = payload.owner}, values, payload.type);
  return values;
}

/// Workers 0, 2 and 3 behind worker 0's relay; worker 1 for itself. Layers of 6 and 2 elements in
/// chunks of 4, 2 and 2; two servers.
class RelayTest : public ::testing::Test {
 protected:
  void begin(ElementType wire_type = ElementType::kFloat32, Iteration first_version = 0,
             std::int64_t pending_limit_bytes = kDefaultPendingLimitBytes) {
    Plan plan = testing_support::toy_plan(4, 2, {6, 2}, 4);
    plan.worker_addresses = {"a:1", "b:1", "a:2", "a:3"};
    plan.leaders = {WorkerRank(0), WorkerRank(1), WorkerRank(0), WorkerRank(0)};
    plan.wire_type = wire_type;
    relay_.emplace(std::move(plan), WorkerRank(0), first_version, pending_limit_bytes);
    memory_ = relay_->layers();
  }
  ChunkDecision send(ChunkKind kind, std::uint32_t rank, std::uint32_t chunk, Iteration iteration,
                     const std::vector<float>& payload = {}) {
    return relay_->on_message(testing_support::message_for(relay_->plan(), kind, WorkerRank(rank),
                                                           ChunkId(chunk), iteration, payload));
  }
  ChunkDecision push(std::uint32_t rank, Iteration iteration, float value) {
    return send(ChunkKind::kPushGradient, rank, 1, iteration, {value, value});
  }
  ChunkDecision pull_exact(std::uint32_t rank, Iteration iteration) {
    DecodedChunk message = testing_support::message_for(
        relay_->plan(), ChunkKind::kPull, WorkerRank(rank), ChunkId(1), iteration, {});
    message.header.element_type = ElementType::kFloat32;
    return relay_->on_message(message);
  }
  /// The servers' answer for chunk 1, as the route puts it in place.
  std::vector<Delivery> land(Iteration version, float value, bool exact = false) {
    for (float& at : memory_[0].parameters.subspan(4, 2)) at = value;
    return relay_->landed(ChunkId(1), version, exact);
  }
  std::vector<float> sum() const {
    const auto part = memory_[0].gradients.subspan(4, 2);
    return {part.begin(), part.end()};
  }

  std::optional<Relay> relay_;
  std::vector<LayerMemory> memory_;
};

/// Sums lie in the layer's memory, where chunks begin anywhere.
TEST(Relay, SumsTheSameOnSeveralThreads) {
  constexpr std::int64_t kElements = 200'003, kChunk = 99'991;
  Plan plan = testing_support::toy_plan(3, 1, {kElements}, kChunk);
  plan.worker_addresses = {"a:1", "a:2", "a:3"};
  plan.leaders.assign(3, WorkerRank(0));
  const auto sums = [&](Team* team) {
    Relay relay(plan, WorkerRank(0), /*first_version=*/0, kDefaultPendingLimitBytes, team);
    SplitMix64 random(9);
    for (std::uint32_t c = 0; c < plan.chunks.size(); ++c) {
      relay.landed(ChunkId(c), /*version=*/0, /*exact=*/false);
      for (const std::uint32_t rank : {2u, 0u, 1u}) {
        std::vector<float> gradient(static_cast<std::size_t>(plan.chunks[c].elements));
        for (float& value : gradient) value = random.uniform() - 0.5f;
        EXPECT_FALSE(
            relay
                .on_message(testing_support::message_for(plan, ChunkKind::kPushGradient,
                                                         WorkerRank(rank), ChunkId(c), 0, gradient))
                .objection);
      }
    }
    const std::span<const float> all = relay.layers()[0].gradients;
    return std::vector<float>(all.begin(), all.end());
  };
  ThreadTeam team(3);
  const std::vector<float> expected = sums(sequential_team());
  EXPECT_NE(expected[kElements - 1], 0.0f);
  EXPECT_TRUE(sums(&team) == expected);
}

TEST_F(RelayTest, StandsInThePlaceOfAllServers) {
  begin();
  const Plan& plan = relay_->plan();
  EXPECT_TRUE(is_behind_relay(plan, WorkerRank(0))) << "the leader too";
  EXPECT_TRUE(is_behind_relay(plan, WorkerRank(3)));
  EXPECT_FALSE(is_behind_relay(plan, WorkerRank(1)));
  const Plan seen = behind_relay(plan, WorkerRank(3));
  EXPECT_THAT(seen.server_addresses, ElementsAre("a:1"));
  for (const PlanChunk& chunk : seen.chunks) EXPECT_EQ(chunk.server, ServerIndex(0));
  EXPECT_TRUE(validate(seen).ok()) << validate(seen);
}

TEST_F(RelayTest, SumsInRankOrderAndAsksOnce) {
  begin();
  land(0, 1.0f);
  // Of these the sum depends on the order.
  push(3, 0, 1.0f);
  push(2, 0, 1e8f);
  EXPECT_THAT(relay_->take_requests(), IsEmpty());
  push(0, 0, -1e8f);
  const std::vector<ChunkRequest> requests = relay_->take_requests();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].kind, ChunkRequest::Kind::kPush);
  EXPECT_EQ(requests[0].chunk, ChunkId(1));
  EXPECT_EQ(requests[0].iteration, 0);
  EXPECT_THAT(sum(), ElementsAre((-1e8f + 1e8f) + 1.0f, (-1e8f + 1e8f) + 1.0f));
  EXPECT_EQ(relay_->pending_bytes(), 0);
}

TEST_F(RelayTest, GivesTheGroupWhatComesBackAndGoesOn) {
  begin();
  const std::vector<Delivery> initial = land(0, 1.0f);
  ASSERT_EQ(initial.size(), 1U);
  EXPECT_EQ(initial[0].only, std::nullopt);
  for (Iteration i = 0; i < 3; ++i) {
    for (const std::uint32_t rank : {2U, 0U, 3U}) EXPECT_FALSE(push(rank, i, 2.0f).objection);
    EXPECT_THAT(sum(), ElementsAre(6.0f, 6.0f)) << "nothing is left of the round before";
    EXPECT_EQ(relay_->take_requests().size(), 1U);
    EXPECT_EQ(relay_->version(ChunkId(1)), i);
    land(i + 1, 3.0f);
    EXPECT_EQ(relay_->version(ChunkId(1)), i + 1);
    EXPECT_THAT(read(relay_->payload(ChunkId(1), false)), ElementsAre(3.0f, 3.0f));
  }
}

TEST_F(RelayTest, RepetitionsCountOnceAndGetWhatTheyMissed) {
  begin();
  land(0, 1.0f);
  push(2, 0, 1.0f);
  EXPECT_EQ(push(2, 0, 1.0f).objection.reason, DataRefusal::kDuplicate);
  push(0, 0, 1.0f);
  push(3, 0, 1.0f);
  const ChunkDecision under_way = push(3, 0, 1.0f);
  EXPECT_EQ(under_way.objection.reason, DataRefusal::kDuplicate);
  EXPECT_FALSE(under_way.delivery) << "it comes to everybody";
  EXPECT_EQ(relay_->take_requests().size(), 1U);
  land(1, 5.0f);
  const ChunkDecision late = push(3, 0, 1.0f);
  EXPECT_EQ(late.objection.reason, DataRefusal::kDuplicate);
  ASSERT_TRUE(late.delivery);
  EXPECT_EQ(late.delivery->only, WorkerRank(3));
  EXPECT_THAT(relay_->take_requests(), IsEmpty());
}

TEST_F(RelayTest, InitialParametersAreWorkerZerosAndGoUpOnce) {
  begin();
  EXPECT_EQ(send(ChunkKind::kInitialise, 2, 1, 0, {7.0f, 8.0f}).objection.reason,
            DataRefusal::kRank);
  EXPECT_EQ(push(2, 0, 1.0f).objection.reason, DataRefusal::kNotInitialised);
  EXPECT_FALSE(send(ChunkKind::kPull, 2, 1, 0).delivery) << "answered when it is there";
  EXPECT_FALSE(send(ChunkKind::kInitialise, 0, 1, 0, {7.0f, 8.0f}).objection);
  const std::vector<ChunkRequest> requests = relay_->take_requests();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].kind, ChunkRequest::Kind::kInitialise);
  EXPECT_EQ(memory_[0].parameters[4], 7.0f);
  const ChunkDecision again = send(ChunkKind::kInitialise, 0, 1, 0, {7.0f, 8.0f});
  EXPECT_EQ(again.objection.reason, DataRefusal::kDuplicate);
  EXPECT_FALSE(again.delivery);
  land(0, 7.0f);
  const ChunkDecision missed = send(ChunkKind::kInitialise, 0, 1, 0, {7.0f, 8.0f});
  ASSERT_TRUE(missed.delivery);
  EXPECT_EQ(missed.delivery->only, WorkerRank(0));
  EXPECT_THAT(relay_->take_requests(), IsEmpty());
}

TEST_F(RelayTest, FromACheckpointEverybodyPulls) {
  begin(ElementType::kFloat32, 7);
  EXPECT_EQ(send(ChunkKind::kInitialise, 0, 1, 0, {7.0f, 8.0f}).objection.reason,
            DataRefusal::kRank);
  EXPECT_EQ(push(2, 6, 1.0f).objection.reason, DataRefusal::kNotInitialised);
  EXPECT_FALSE(send(ChunkKind::kPull, 2, 1, 7).objection);
  EXPECT_EQ(send(ChunkKind::kPull, 2, 1, 6).objection.reason, DataRefusal::kIteration);
  land(7, 2.0f);
  const ChunkDecision late = send(ChunkKind::kPull, 3, 1, 7);
  ASSERT_TRUE(late.delivery);
  EXPECT_EQ(late.delivery->only, WorkerRank(3));
  EXPECT_FALSE(push(2, 7, 1.0f).objection);
}

TEST_F(RelayTest, WhatDoesNotFitIsRefused) {
  begin();
  land(0, 1.0f);
  const ChunkDecision stranger = push(1, 0, 1.0f);
  EXPECT_EQ(stranger.objection.reason, DataRefusal::kRank);
  EXPECT_THAT(stranger.objection.message, HasSubstr("not of the group that worker 0 leads"));
  EXPECT_EQ(push(2, 1, 1.0f).objection.reason, DataRefusal::kIteration);
  EXPECT_EQ(send(ChunkKind::kPull, 2, 1, 2).objection.reason, DataRefusal::kIteration);
  EXPECT_EQ(send(ChunkKind::kParameters, 2, 1, 0, {1.0f, 1.0f}).objection.reason,
            DataRefusal::kKind);
  EXPECT_EQ(send(ChunkKind::kPushGradient, 2, 1, 0, {1.0f}).objection.reason, DataRefusal::kSize);
  EXPECT_THAT(relay_->take_requests(), IsEmpty());
}

TEST_F(RelayTest, WithSixteenBitsTheGroupGetsTheBitsThatCame) {
  begin(ElementType::kBfloat16);
  const float value = from_bfloat16(to_bfloat16(0.1f));
  land(0, value);
  const ChunkPayload payload = relay_->payload(ChunkId(1), false);
  EXPECT_EQ(payload.type, ElementType::kBfloat16);
  EXPECT_THAT(read(payload), ElementsAre(value, value));
  // Kept for readers that are not done when the next version comes.
  land(1, 2.0f);
  EXPECT_THAT(read(payload), ElementsAre(value, value));
}

TEST_F(RelayTest, ExactParametersAreFetchedOnceAndGivenToThoseWhoAsked) {
  begin(ElementType::kFloat16, 3);
  land(3, 0.5f);
  EXPECT_FALSE(pull_exact(2, 3).delivery);
  EXPECT_FALSE(pull_exact(0, 3).delivery);
  EXPECT_FALSE(pull_exact(2, 3).delivery) << "repeated after a cut";
  const std::vector<ChunkRequest> requests = relay_->take_requests();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].kind, ChunkRequest::Kind::kPullExact);
  std::vector<WorkerRank> told;
  for (const Delivery& delivery : land(3, 0.123f, /*exact=*/true)) {
    EXPECT_TRUE(delivery.exact);
    told.push_back(delivery.only.value());
  }
  EXPECT_THAT(told, ElementsAre(WorkerRank(2), WorkerRank(0)));
  EXPECT_THAT(read(relay_->payload(ChunkId(1), true)), ElementsAre(0.123f, 0.123f));
  EXPECT_THAT(read(relay_->payload(ChunkId(1), false)), ElementsAre(0.5f, 0.5f));
  const ChunkDecision late = pull_exact(3, 3);
  ASSERT_TRUE(late.delivery);
  EXPECT_TRUE(late.delivery->exact);
  EXPECT_EQ(late.delivery->only, WorkerRank(3));
}

TEST_F(RelayTest, OneThingAtATimeIsAskedOfTheServers) {
  begin(ElementType::kBfloat16);
  land(0, 0.5f);
  // A worker requests exact parameters, as at the end, while all train on.
  EXPECT_FALSE(pull_exact(2, 0).objection);
  EXPECT_EQ(relay_->take_requests().size(), 1U);
  for (const std::uint32_t rank : {0U, 2U, 3U}) EXPECT_FALSE(push(rank, 0, 1.0f).objection);
  EXPECT_THAT(relay_->take_requests(), IsEmpty()) << "the sum waits for the answer";
  land(0, 0.123f, /*exact=*/true);
  const std::vector<ChunkRequest> requests = relay_->take_requests();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].kind, ChunkRequest::Kind::kPush);
  EXPECT_EQ(pull_exact(2, 0).delivery->only, WorkerRank(2)) << "it is here";
  land(1, 0.25f);
  for (const std::uint32_t rank : {0U, 2U, 3U}) EXPECT_FALSE(push(rank, 1, 1.0f).objection);
  EXPECT_EQ(relay_->take_requests().size(), 1U);
  EXPECT_EQ(pull_exact(0, 1).objection.reason, DataRefusal::kIteration) << "too late";
  EXPECT_THAT(relay_->take_requests(), IsEmpty());
}

TEST_F(RelayTest, WhoIsAheadIsHeldBack) {
  begin(ElementType::kFloat32, 0, /*pending_limit_bytes=*/1);
  land(0, 1.0f);
  push(3, 0, 1.0f);
  EXPECT_EQ(relay_->pending_bytes(), 8);
  EXPECT_FALSE(relay_->may_read(WorkerRank(3)));
  EXPECT_TRUE(relay_->may_read(WorkerRank(0))) << "so that somebody always makes progress";
  push(0, 0, 1.0f);
  push(2, 0, 1.0f);
  EXPECT_EQ(relay_->pending_bytes(), 0);
  EXPECT_TRUE(relay_->may_read(WorkerRank(3)));
}

}  // namespace
}  // namespace poseidon::relay_test
