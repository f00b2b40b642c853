#include "sync/routes/ps_route.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/tensor/float16.h"
#include "common/wire/norm_wire.h"
#include "gmock/gmock.h"
#include "tests/support/toy_plan.h"

namespace poseidon::ps_route_test {
namespace {

using ::testing::ElementsAre;
using testing_support::message_for;
using testing_support::toy_plan;

/// A message of the server as it arrives.
Bytes arriving(const DecodedChunk& message) {
  auto prefix =
      std::make_shared<std::string>(encode_prefix(message.header, message.payload.size()).str());
  Bytes bytes;
  bytes.pieces.emplace_back(reinterpret_cast<const std::byte*>(prefix->data()), prefix->size());
  bytes.pieces.push_back(message.payload.pieces[0]);
  bytes.owner = std::make_shared<std::pair<std::shared_ptr<std::string>, DecodedChunk>>(
      std::move(prefix), message);
  return bytes;
}

/// Why the message was refused; none if it was used.
Objection objection_of(const Landing& landing) {
  const auto* refused = std::get_if<Refused>(&landing);
  return refused != nullptr ? refused->objection : Objection{};
}
/// The layer that is complete with it.
std::optional<LayerIndex> layer_of(const Landing& landing) {
  const auto* layer = std::get_if<LayerLanded>(&landing);
  return layer != nullptr ? std::optional(layer->layer) : std::nullopt;
}
/// The squares of the network that are complete with it.
std::optional<double> squares_of(const Landing& landing) {
  return std::get<NormsLanded>(landing).complete.all_gradients;
}

/// Layers of the gradients that leave when three layers of two chunks are ready, the last one
/// first.
std::vector<std::uint32_t> layers_sent(SendOrder order) {
  Plan plan = toy_plan(1, 1, {4, 4, 4}, 2);
  plan.send_order = order;
  FloatBuffer parameters(12), gradients(12);
  std::vector<LayerMemory> memory;
  for (std::size_t at = 0; at < 12; at += 4) {
    memory.push_back(
        {parameters.floats().subspan(at, 4), gradients.floats().subspan(at, 4), gradients.owner()});
  }
  PsRoute route(plan, WorkerRank(0), memory);
  route.initialise_from_here();
  for (std::uint32_t chunk = 0; chunk < plan.chunks.size(); ++chunk) {
    EXPECT_TRUE(route.next_message(ServerIndex(0)));
    EXPECT_FALSE(objection_of(route.on_message(
        ServerIndex(0), arriving(message_for(plan, ChunkKind::kParameters, WorkerRank(0),
                                             ChunkId(chunk), 0, {1, 2})))));
  }
  for (const std::uint32_t layer : {2u, 1u, 0u}) route.gradient_ready(LayerIndex(layer), 0);
  std::vector<std::uint32_t> layers;
  while (auto outgoing = route.next_message(ServerIndex(0))) {
    layers.push_back(outgoing->layer.value());
  }
  return layers;
}

TEST(PsRoute, SendsInTheOrderOfThePlan) {
  EXPECT_THAT(layers_sent(SendOrder::kNeed), ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_THAT(layers_sent(SendOrder::kReady), ElementsAre(2, 2, 1, 1, 0, 0));
}

TEST(PsRoute, SaysWhatALayerAwaits) {
  const Plan plan = toy_plan(1, 2, {4, 4}, 2);
  FloatBuffer parameters(8), gradients(8);
  PsRoute route(
      plan, WorkerRank(0),
      {{parameters.floats().first(4), gradients.floats().first(4), gradients.owner()},
       {parameters.floats().subspan(4), gradients.floats().subspan(4), gradients.owner()}});
  EXPECT_TRUE(route.awaited(LayerIndex(1)).empty());
  route.pull_initial();
  const std::vector<AwaitedData> awaited = route.awaited(LayerIndex(1));
  ASSERT_EQ(awaited.size(), 2u);
  EXPECT_EQ(awaited[0].chunk, ChunkId(2));
  EXPECT_EQ(awaited[0].layer, LayerIndex(1));
  EXPECT_EQ(awaited[0].server, plan.chunks[2].server);
  EXPECT_EQ(awaited[0].iteration, 0);
  const PlanChunk& first = plan.chunks[2];
  route.on_message(first.server, arriving(message_for(plan, ChunkKind::kParameters, WorkerRank(0),
                                                      ChunkId(2), 0, {1, 2})));
  ASSERT_EQ(route.awaited(LayerIndex(1)).size(), 1u);
  EXPECT_EQ(route.awaited(LayerIndex(1))[0].chunk, ChunkId(3));
}

// A server closes streams that say nothing.
TEST(PsRoute, ANewStreamWithNothingOpenPullsTheSmallestChunkThatIsHere) {
  const Plan plan = toy_plan(1, 1, {5}, 3);  // chunks of 3 and 2
  FloatBuffer parameters(5), gradients(5);
  PsRoute route(plan, WorkerRank(0),
                {{parameters.floats(), gradients.floats(), gradients.owner()}});
  const auto land = [&](std::uint32_t chunk, Iteration version) {
    std::vector<float> values(chunk == 0 ? 3 : 2, 1.0f);
    return route.on_message(ServerIndex(0),
                            arriving(message_for(plan, ChunkKind::kParameters, WorkerRank(0),
                                                 ChunkId(chunk), version, values)));
  };
  route.initialise_from_here();
  while (route.next_message(ServerIndex(0))) {
  }
  EXPECT_FALSE(objection_of(land(0, 0)));
  EXPECT_FALSE(objection_of(land(1, 0)));
  route.stream_opened(ServerIndex(0));
  route.stream_opened(ServerIndex(0));
  const auto greeting = route.next_message(ServerIndex(0));
  ASSERT_TRUE(greeting);
  EXPECT_EQ(greeting->chunk, ChunkId(1));
  EXPECT_TRUE(greeting->message.payload.empty());
  EXPECT_FALSE(route.next_message(ServerIndex(0)));
  EXPECT_EQ(objection_of(land(1, 0)).reason, DataRefusal::kDuplicate) << "what it is answered with";
  // What has become urgent meanwhile goes in its place.
  route.stream_opened(ServerIndex(0));
  route.gradient_ready(LayerIndex(0), 0);
  EXPECT_EQ(route.next_message(ServerIndex(0))->gradient_of, 0);
  EXPECT_EQ(route.next_message(ServerIndex(0))->gradient_of, 0);
  EXPECT_FALSE(route.next_message(ServerIndex(0)));
}

TEST(PsRoute, TellsHowMuchOfALayerIsThereFromItsBeginning) {
  const Plan plan = toy_plan(2, 1, {10, 2}, 3);  // chunks of 3, 3, 3, 1 and of 2
  FloatBuffer parameters(10), gradients(10), others(2), other_gradients(2);
  PsRoute route(plan, WorkerRank(0),
                {{parameters.floats(), gradients.floats(), gradients.owner()},
                 {others.floats(), other_gradients.floats(), other_gradients.owner()}});
  const auto land = [&](std::uint32_t chunk, Iteration version) {
    const PlanChunk& place = plan.chunks[chunk];
    std::vector<float> values(static_cast<std::size_t>(place.elements), 1.0f);
    const Landing landing = route.on_message(
        place.server, arriving(message_for(plan, ChunkKind::kParameters, WorkerRank(0),
                                           ChunkId(chunk), version, values)));
    EXPECT_FALSE(objection_of(landing)) << objection_of(landing).message;
    if (const auto* layer = std::get_if<LayerLanded>(&landing)) return layer->leading_elements;
    return std::get<ChunkLanded>(landing).leading_elements;
  };
  route.pull_initial();
  EXPECT_EQ(land(4, 0), 2);
  EXPECT_EQ(land(1, 0), 0);
  EXPECT_EQ(land(0, 0), 6);
  EXPECT_EQ(land(3, 0), 6);
  EXPECT_EQ(land(2, 0), 10);
  route.gradient_ready(LayerIndex(0), 0);
  EXPECT_EQ(land(2, 1), 0) << "the chunks before have the version before";
  EXPECT_EQ(land(0, 1), 3);
  EXPECT_EQ(land(1, 1), 9);
  EXPECT_EQ(land(3, 1), 10);
}

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
    const DecodedChunk message = message_for(as_sent, ChunkKind::kParameters, WorkerRank(0),
                                             ChunkId(chunk), version, values);
    return route_->on_message(ServerIndex(0), arriving(message));
  }
  void land_initial() {
    route_->initialise_from_here();
    next();
    next();
    EXPECT_FALSE(layer_of(land(0, 0, {1, 2, 3, 4})));
    EXPECT_EQ(layer_of(land(1, 0, {5, 6, 7})), LayerIndex(0));
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
  held.payload_owner.reset();
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
  EXPECT_EQ(objection_of(land(0, 0, {1, 2, 3, 4})).reason, DataRefusal::kDuplicate);
  EXPECT_FALSE(objection_of(land(0, 0, {1.001f, 2, 3, 4}, /*exact=*/true)));
  EXPECT_EQ(parameters_.floats()[0], 1.001f);
  EXPECT_EQ(objection_of(land(0, 0, {9, 9, 9, 9}, /*exact=*/true)).reason, DataRefusal::kDuplicate);
  // The stream is cut: unanswered requests are repeated.
  route_->stream_opened(ServerIndex(0));
  EXPECT_EQ(decoded(next()).header.chunk, ChunkId(1));
  EXPECT_FALSE(route_->next_message(ServerIndex(0)));
  const Landing landing = land(1, 0, {5, 6.001f, 7}, /*exact=*/true);
  EXPECT_EQ(layer_of(landing), LayerIndex(0));
  EXPECT_TRUE(std::get<LayerLanded>(landing).exact);
  EXPECT_EQ(parameters_.floats()[5], 6.001f);
}

TEST_F(RoundingRoute, WhoAskedForExactOnesAskedForNoNewerOnes) {
  land_initial();
  route_->pull_exact();
  next();
  EXPECT_EQ(objection_of(land(0, 1, {1, 2, 3, 4})).reason, DataRefusal::kIteration);
}

TEST_F(RoundingRoute, ExactParametersThatNobodyAskedForAreRefused) {
  land_initial();
  route_->gradient_ready(LayerIndex(0), 0);
  const Landing landing = land(0, 1, {1, 2, 3, 4}, /*exact=*/true);
  EXPECT_EQ(objection_of(landing).reason, DataRefusal::kElementType);
  EXPECT_THAT(objection_of(landing).message, ::testing::HasSubstr("did not ask"));
}

/// Two layers of 4 and 2 parameters, a chunk each, on two servers; steps wait for norms.
class NormRoute : public ::testing::Test {
 protected:
  explicit NormRoute(NormScope scope = NormScope::kNetwork) {
    plan_ = toy_plan(2, 2, {4, 2}, 4);
    plan_.norm_scope = scope;
    route_.emplace(plan_, WorkerRank(0), memory());
    route_->initialise_from_here();
    for (std::uint32_t c = 0; c < 2; ++c) {
      route_->next_message(ServerIndex(c));
      EXPECT_FALSE(objection_of(parameters(c, 0)));
      route_->gradient_ready(LayerIndex(c), 0);
      EXPECT_EQ(sent(c), ChunkKind::kPushGradient);
    }
  }
  std::vector<LayerMemory> memory() {
    return {{floats_.floats().subspan(0, 4), floats_.floats().subspan(0, 4), floats_.owner()},
            {floats_.floats().subspan(4, 2), floats_.floats().subspan(4, 2), floats_.owner()}};
  }
  Landing receive(const ChunkHeader& header, const std::string& payload, std::uint32_t server) {
    const std::string message = encode_prefix(header, payload.size()).str() + payload;
    Bytes bytes;
    bytes.pieces.emplace_back(reinterpret_cast<const std::byte*>(message.data()), message.size());
    return route_->on_message(ServerIndex(server), bytes);
  }
  ChunkHeader header(ChunkKind kind, std::uint32_t chunk, Iteration iteration) const {
    ChunkHeader header;
    header.kind = kind;
    header.epoch = plan_.epoch;
    header.chunk = ChunkId(chunk);
    header.offset = plan_.chunks[chunk].offset;
    header.iteration = iteration;
    return header;
  }
  Landing norms(std::uint32_t chunk, Iteration iteration, double gradient) {
    return receive(header(ChunkKind::kNorms, chunk, iteration), encode_norms({{gradient, 0.0}}),
                   chunk);
  }
  Landing parameters(std::uint32_t chunk, Iteration version) {
    ChunkHeader parameters = header(ChunkKind::kParameters, chunk, version);
    parameters.element_type = ElementType::kFloat32;
    return receive(parameters, std::string(chunk == 0 ? 16 : 8, '\0'), chunk);
  }
  std::optional<ChunkKind> sent(std::uint32_t server) {
    // On the heap: GCC 12 takes the inlined vector of an optional for uninitialised.
    const auto outgoing = std::make_unique<std::optional<PsRoute::Outgoing>>(
        route_->next_message(ServerIndex(server)));
    if (!outgoing->has_value()) return std::nullopt;
    const OutgoingMessage& whole = (*outgoing)->message;
    std::string bytes = whole.prefix.str();
    bytes.append(reinterpret_cast<const char*>(whole.payload.data()), whole.payload.size());
    Bytes message;
    message.pieces.emplace_back(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
    last_ = *decode_chunk(message);
    if (last_.header.kind == ChunkKind::kTotals) {
      totals_ = *decode_totals(last_.payload, plan_.norm_scope);
    }
    return last_.header.kind;
  }

  Plan plan_;
  FloatBuffer floats_{6};
  std::optional<PsRoute> route_;
  DecodedChunk last_;
  StepTotals totals_;
};

TEST_F(NormRoute, TotalsGoOutWhenAllNormsAreHereAndAreRepeated) {
  EXPECT_FALSE(squares_of(norms(1, 0, 9.0)));
  EXPECT_EQ(sent(1), std::nullopt);
  const Landing landing = norms(0, 0, 16.0);
  ASSERT_FALSE(objection_of(landing)) << objection_of(landing).message;
  EXPECT_EQ(squares_of(landing), 25.0);
  for (std::uint32_t server = 0; server < 2; ++server) {
    EXPECT_EQ(sent(server), ChunkKind::kTotals);
    EXPECT_EQ(totals_.all_gradients, 25.0);
    EXPECT_EQ(totals_.tensors[0].gradient, server == 0 ? 16.0 : 9.0);
    EXPECT_EQ(sent(server), std::nullopt);
  }
  route_->stream_opened(ServerIndex(1));
  EXPECT_EQ(sent(1), ChunkKind::kTotals) << "until it is answered";
  EXPECT_EQ(layer_of(parameters(1, 1)), LayerIndex(1));
  route_->stream_opened(ServerIndex(1));
  EXPECT_EQ(sent(1), ChunkKind::kPull) << "nothing is open: a word, so that the stream is known";
}

TEST_F(NormRoute, HostileNormsAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(objection_of(norms(0, 0, nan)).reason, DataRefusal::kNorm);
  EXPECT_EQ(objection_of(norms(0, 0, -1.0)).reason, DataRefusal::kNorm);
  EXPECT_EQ(objection_of(norms(0, 1, 1.0)).reason, DataRefusal::kIteration);
  EXPECT_EQ(objection_of(norms(0, -1, 1.0)).reason, DataRefusal::kIteration);
  EXPECT_EQ(objection_of(receive(header(ChunkKind::kNorms, 0, 0), "", 0)).reason,
            DataRefusal::kSize);
  EXPECT_EQ(
      objection_of(receive(header(ChunkKind::kNorms, 0, 0), encode_norms({{1.0, 0.0}}), 1)).reason,
      DataRefusal::kChunk)
      << "another server's";
  EXPECT_EQ(
      objection_of(receive(header(ChunkKind::kTotals, 0, 0), encode_totals({1.0, {{1.0, 0.0}}}), 0))
          .reason,
      DataRefusal::kKind);
  EXPECT_FALSE(objection_of(norms(0, 0, 1.0)));
  EXPECT_EQ(objection_of(norms(0, 0, 1.0)).reason, DataRefusal::kDuplicate);
}

TEST_F(NormRoute, AStepThatNobodyReleasedIsRefused) {
  EXPECT_FALSE(objection_of(norms(0, 0, 16.0)));
  EXPECT_EQ(objection_of(parameters(0, 1)).reason, DataRefusal::kIteration);
  EXPECT_EQ(squares_of(norms(1, 0, 9.0)), 25.0);
  EXPECT_EQ(sent(0), ChunkKind::kTotals);
  EXPECT_EQ(layer_of(parameters(0, 1)), LayerIndex(0));
}

TEST_F(NormRoute, ParametersThatOvertookTheirNormsAreAskedForAgain) {
  EXPECT_EQ(objection_of(parameters(0, 1)).reason, DataRefusal::kDuplicate);
  EXPECT_EQ(sent(0), std::nullopt);
  EXPECT_FALSE(objection_of(norms(0, 0, 1.0)));
  EXPECT_EQ(sent(0), ChunkKind::kPushGradient);
  EXPECT_FALSE(objection_of(norms(1, 0, 1.0)));
  EXPECT_EQ(layer_of(parameters(0, 1)), LayerIndex(0));
}

class LayerNormRoute : public NormRoute {
 protected:
  LayerNormRoute() : NormRoute(NormScope::kLayer) {}
};

TEST_F(LayerNormRoute, ALayerWaitsForItselfAlone) {
  EXPECT_FALSE(squares_of(norms(1, 0, 9.0)));
  EXPECT_EQ(sent(1), ChunkKind::kTotals);
  EXPECT_EQ(totals_.tensors[0].gradient, 9.0);
  EXPECT_EQ(sent(0), std::nullopt);
}

/// A program says the rates: tensor 0 of layer l has the learning rate l + 1.
class ProgramRoute : public NormRoute {
 protected:
  ProgramRoute() : NormRoute(NormScope::kProgram) {}
  static ProgramRates rates(bool ahead) {
    return {.ahead = ahead, .gradient_scale = 0.5, .tensors = {{{1.0, 0.1}}, {{2.0, 0.2}}}};
  }
  void expect_totals(std::uint32_t server, double squares) {
    EXPECT_EQ(sent(server), ChunkKind::kTotals);
    EXPECT_EQ(totals_.gradient_scale, 0.5);
    EXPECT_EQ(totals_.rates, std::vector{rates(false).tensors[server][0]});
    EXPECT_EQ(totals_.all_gradients, squares);
  }
  /// The step that ends iteration 0.
  void step_with_norms() {
    norms(0, 0, 16.0);
    norms(1, 0, 9.0);
    route_->step_rates(0, rates(/*ahead=*/false));
    for (std::uint32_t c = 0; c < 2; ++c) {
      EXPECT_EQ(sent(c), ChunkKind::kTotals);
      EXPECT_EQ(layer_of(parameters(c, 1)), LayerIndex(c));
    }
  }
};

TEST_F(ProgramRoute, TotalsWaitForNormsAndRates) {
  EXPECT_FALSE(objection_of(norms(0, 0, 16.0)));
  EXPECT_EQ(squares_of(norms(1, 0, 9.0)), 25.0);
  EXPECT_EQ(sent(0), std::nullopt) << "the program may look at the norm first";
  route_->step_rates(0, rates(/*ahead=*/false));
  expect_totals(0, 25.0);
  expect_totals(1, 25.0);
}

TEST_F(ProgramRoute, TotalsWaitForNormsThatComeBehindTheRates) {
  EXPECT_FALSE(objection_of(norms(0, 0, 16.0)));
  route_->step_rates(0, rates(/*ahead=*/false));
  EXPECT_EQ(sent(0), std::nullopt);
  EXPECT_EQ(squares_of(norms(1, 0, 9.0)), 25.0);
  expect_totals(0, 25.0);
  expect_totals(1, 25.0);
}

TEST_F(ProgramRoute, RatesAheadTravelInFrontOfEachGradient) {
  step_with_norms();
  route_->step_rates(1, rates(/*ahead=*/true));
  EXPECT_EQ(sent(0), std::nullopt) << "nothing to step";
  route_->gradient_ready(LayerIndex(0), 1);
  expect_totals(0, 0.0);
  EXPECT_EQ(last_.header.iteration, 1);
  EXPECT_EQ(sent(0), ChunkKind::kPushGradient);
  EXPECT_EQ(sent(0), std::nullopt);
  route_->stream_opened(ServerIndex(0));
  expect_totals(0, 0.0);
  EXPECT_EQ(sent(0), ChunkKind::kPushGradient) << "both again";
  EXPECT_FALSE(squares_of(norms(0, 1, 4.0)));
  EXPECT_EQ(layer_of(parameters(0, 2)), LayerIndex(0)) << "before the other layer's gradient";
  route_->gradient_ready(LayerIndex(1), 1);
  expect_totals(1, 0.0);
  EXPECT_EQ(squares_of(norms(1, 1, 5.0)), 9.0);
  EXPECT_EQ(sent(1), ChunkKind::kPushGradient);
  EXPECT_EQ(sent(1), std::nullopt) << "no totals for a step that does not wait";
  EXPECT_EQ(layer_of(parameters(1, 2)), LayerIndex(1));
}

TEST_F(ProgramRoute, ParametersOfAStepAheadThatOvertookItsNormsAreAskedForAgain) {
  step_with_norms();
  route_->step_rates(1, rates(/*ahead=*/true));
  route_->gradient_ready(LayerIndex(0), 1);
  expect_totals(0, 0.0);
  EXPECT_EQ(sent(0), ChunkKind::kPushGradient);
  EXPECT_EQ(objection_of(parameters(0, 2)).reason, DataRefusal::kDuplicate);
  EXPECT_FALSE(objection_of(norms(0, 1, 4.0)));
  EXPECT_EQ(sent(0), ChunkKind::kPushGradient);
  EXPECT_EQ(layer_of(parameters(0, 2)), LayerIndex(0));
}

}  // namespace
}  // namespace poseidon::ps_route_test
