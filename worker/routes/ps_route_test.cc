#include "worker/routes/ps_route.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "common/float16.h"
#include "gmock/gmock.h"
#include "tests/support/toy_plan.h"

namespace poseidon {
namespace {

using testing_support::message_for;
using testing_support::toy_plan;

/// One layer of 7 parameters in chunks of 4 and 3 on one server; bf16 travels.
class RoundingRoute : public ::testing::Test {
 protected:
  RoundingRoute() {
    plan_ = toy_plan(1, 1, {7}, 4);
    plan_.wire_type = ElementType::kBfloat16;
    for (std::size_t i = 0; i < 7; ++i) {
      parameters_.floats()[i] = 0.1f * static_cast<float>(i);
      gradients_.floats()[i] = 1.0f + 0.001f * static_cast<float>(i);
    }
    const LayerMemory memory{parameters_.floats(), gradients_.floats(), gradients_.owner()};
    route_ = std::make_unique<PsRoute>(plan_, WorkerRank(0), std::vector<LayerMemory>{memory});
  }

  static DecodedChunk decoded(const OutgoingMessage& message) {
    auto memory = std::make_shared<std::string>(message.prefix.view());
    memory->append(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
    Bytes bytes;
    bytes.pieces.emplace_back(reinterpret_cast<const std::byte*>(memory->data()), memory->size());
    bytes.owner = std::move(memory);
    return *decode_chunk(bytes);
  }
  OutgoingMessage next() {
    auto outgoing = route_->next_message(ServerIndex(0));
    EXPECT_TRUE(outgoing);
    return std::move(outgoing->message);
  }
  /// The server's parameters of one chunk arrive.
  Landing land(std::uint32_t chunk, Iteration version, const std::vector<float>& values,
               bool exact = false) {
    Plan as_sent = plan_;
    if (exact) as_sent.wire_type = ElementType::kFloat32;
    DecodedChunk message = message_for(as_sent, ChunkKind::kParameters, WorkerRank(0),
                                       ChunkId(chunk), version, values);
    auto prefix =
        std::make_shared<std::string>(encode_prefix(message.header, message.payload.size()).str());
    Bytes bytes;
    bytes.pieces.emplace_back(reinterpret_cast<const std::byte*>(prefix->data()), prefix->size());
    bytes.pieces.push_back(message.payload.pieces[0]);
    Landing landing = route_->on_message(ServerIndex(0), bytes);
    return landing;
  }
  void land_initial() {
    route_->initialise_from_here();
    next();
    next();
    EXPECT_FALSE(land(0, 0, {1, 2, 3, 4}).layer);
    EXPECT_EQ(land(1, 0, {5, 6, 7}).layer, LayerIndex(0));
  }

  Plan plan_;
  FloatBuffer parameters_{7}, gradients_{7};
  std::unique_ptr<PsRoute> route_;
};

TEST_F(RoundingRoute, InitialisesExactlyAndTakesTheRoundedEcho) {
  route_->initialise_from_here();
  const DecodedChunk first = decoded(next());
  EXPECT_EQ(first.header.kind, ChunkKind::kInitialise);
  EXPECT_EQ(first.header.element_type, ElementType::kFloat32);
  EXPECT_EQ(first.payload.size(), 16u);
  next();
  land(0, 0, {0.0f, 0.1f, 0.2f, 0.3f});
  EXPECT_EQ(parameters_.floats()[1], from_bfloat16(to_bfloat16(0.1f)));
}

TEST_F(RoundingRoute, GradientsAreRoundedToSixteenBits) {
  land_initial();
  route_->gradient_ready(LayerIndex(0), 0);
  const OutgoingMessage message = next();
  EXPECT_EQ(message.payload.size(), 8u);
  const DecodedChunk push = decoded(message);
  EXPECT_EQ(push.header.kind, ChunkKind::kPushGradient);
  EXPECT_EQ(push.header.element_type, ElementType::kBfloat16);
  EXPECT_FALSE(check_against_plan(push.header, push.payload.size(), plan_));
  std::vector<float> sent(4);
  copy_payload(push.payload, sent, ElementType::kBfloat16);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sent[i], from_bfloat16(to_bfloat16(gradients_.floats()[i])));
  }
}

TEST_F(RoundingRoute, WhatAMessageRefersToIsNotOverwrittenAndWarmBuffersAreUsedAgain) {
  land_initial();
  route_->gradient_ready(LayerIndex(0), 0);
  OutgoingMessage held = next();
  const std::vector<std::byte> bytes(held.payload.begin(), held.payload.end());
  // Sent again on a new stream: the same memory.
  route_->stream_opened(ServerIndex(0));
  EXPECT_EQ(next().payload.data(), held.payload.data());
  next();
  land(0, 1, {1, 2, 3, 4});
  land(1, 1, {5, 6, 7});
  std::ranges::fill(gradients_.floats(), -8.0f);
  route_->gradient_ready(LayerIndex(0), 1);
  const std::byte* fresh = nullptr;
  {
    const OutgoingMessage second = next();
    fresh = second.payload.data();
    EXPECT_NE(fresh, held.payload.data());
    EXPECT_TRUE(std::ranges::equal(held.payload, bytes)) << "a slow reader still has the first";
  }
  held.payload_owner = nullptr;
  next();
  land(0, 2, {1, 2, 3, 4});
  land(1, 2, {5, 6, 7});
  route_->gradient_ready(LayerIndex(0), 2);
  EXPECT_EQ(next().payload.data(), fresh);
}

TEST_F(RoundingRoute, FetchesTheExactParametersOnce) {
  land_initial();
  EXPECT_EQ(parameters_.floats()[0], 1.0f);
  route_->pull_exact();
  const DecodedChunk pull = decoded(next());
  EXPECT_EQ(pull.header.kind, ChunkKind::kPull);
  EXPECT_EQ(pull.header.element_type, ElementType::kFloat32);
  EXPECT_EQ(pull.header.iteration, 0);
  EXPECT_EQ(pull.payload.size(), 0u);
  EXPECT_FALSE(check_against_plan(pull.header, 0, plan_));
  // A repetition of the rounded ones does not count as the answer.
  EXPECT_EQ(land(0, 0, {1, 2, 3, 4}).objection.reason, DataRefusal::kDuplicate);
  EXPECT_FALSE(land(0, 0, {1.001f, 2, 3, 4}, /*exact=*/true).objection);
  EXPECT_EQ(parameters_.floats()[0], 1.001f);
  EXPECT_EQ(land(0, 0, {9, 9, 9, 9}, /*exact=*/true).objection.reason, DataRefusal::kDuplicate);
  // The stream is cut: what is unanswered is asked for again.
  route_->stream_opened(ServerIndex(0));
  EXPECT_EQ(decoded(next()).header.chunk, ChunkId(1));
  EXPECT_FALSE(route_->next_message(ServerIndex(0)));
  const Landing landing = land(1, 0, {5, 6.001f, 7}, /*exact=*/true);
  EXPECT_EQ(landing.layer, LayerIndex(0));
  EXPECT_TRUE(landing.exact);
  EXPECT_EQ(parameters_.floats()[5], 6.001f);
}

TEST_F(RoundingRoute, ExactParametersThatNobodyAskedForAreRefused) {
  land_initial();
  route_->gradient_ready(LayerIndex(0), 0);
  const Landing landing = land(0, 1, {1, 2, 3, 4}, /*exact=*/true);
  EXPECT_EQ(landing.objection.reason, DataRefusal::kElementType);
  EXPECT_THAT(landing.objection.message, ::testing::HasSubstr("did not ask"));
}

}  // namespace
}  // namespace poseidon
