#include "sync/routes/sfb_route.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace poseidon::sfb_route_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Layer 0 by PS, layers 1 and 2 by SFB: 6 x 10 with bias and 4 x 6 without.
Plan plan_of(std::uint32_t workers, std::int64_t batch = 3) {
  Plan plan;
  plan.epoch = Epoch(9);
  plan.batch_size = batch;
  for (std::uint32_t r = 0; r < workers; ++r) {
    plan.worker_addresses.push_back(absl::StrCat("worker", r));
  }
  plan.server_addresses = {"server0"};
  const auto add = [&plan](const char* name, std::vector<std::int64_t> shape, bool bias,
                           Scheme scheme) {
    const std::int64_t parameters = shape[0] * shape[1] + (bias ? shape[0] : 0);
    plan.layers.push_back({.name = name,
                           .type = "fully_connected",
                           .shape = std::move(shape),
                           .parameters = parameters,
                           .scheme = scheme});
  };
  add("first", {5, 2}, false, Scheme::kPs);
  add("second", {6, 10}, true, Scheme::kSfb);
  add("third", {4, 6}, false, Scheme::kSfb);
  plan.chunks = {{.layer = LayerIndex(0), .offset = 0, .elements = 10}};
  EXPECT_TRUE(validate(plan).ok()) << validate(plan);
  return plan;
}

constexpr LayerIndex kSecond{1}, kThird{2};

Bytes to_bytes(const OutgoingMessage& message) {
  auto memory = std::make_shared<std::string>(message.prefix.view());
  memory->append(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
  Bytes bytes;
  bytes.pieces = {absl::Span<const std::byte>(reinterpret_cast<const std::byte*>(memory->data()),
                                              memory->size())};
  bytes.owner = std::move(memory);
  return bytes;
}

/// One worker's route and its memory.
struct Worker {
  Worker(const Plan& plan, std::uint32_t rank, SfbOptions options) {
    std::vector<LayerMemory> layers;
    for (const PlanLayer& layer : plan.layers) {
      parameters.emplace_back(layer.parameters);
      for (float& value : parameters.back().floats()) {
        value = rank == 0 ? static_cast<float>(&value - parameters.back().floats().data()) : -7.0f;
      }
      layers.push_back({.parameters = parameters.back().floats(),
                        .gradients = {},
                        .owner = parameters.back().owner()});
    }
    stacks = std::make_unique<FactorStacks>(plan, WorkerRank(rank));
    route = std::make_unique<SfbRoute>(plan, WorkerRank(rank), layers, stacks.get(), options);
  }
  /// Factors that tell rank, layer, iteration and element.
  void fill(LayerIndex layer, Iteration iteration) {
    const OwnFactors own = stacks->own(layer, iteration);
    fill(own.output_gradient, layer, iteration, 0);
    fill(own.input, layer, iteration, 5000);
  }
  void fill(std::span<float> values, LayerIndex layer, Iteration iteration, int base) const {
    for (std::size_t e = 0; e < values.size(); ++e)
      values[e] = expected(route->rank().value(), layer, iteration, base, e);
  }
  static float expected(std::uint32_t rank, LayerIndex layer, Iteration iteration, int base,
                        std::size_t element) {
    return static_cast<float>(base + static_cast<int>(rank) * 100000 +
                              static_cast<int>(layer.value()) * 10000 +
                              static_cast<int>(iteration) * 1000 + static_cast<int>(element));
  }
  FactorLanding ready(LayerIndex layer, Iteration iteration, std::uint64_t digest = 77) {
    if (iteration < route->options().iterations) fill(layer, iteration);
    return route->factors_ready(layer, iteration, digest);
  }
  std::vector<FloatBuffer> parameters;
  std::unique_ptr<FactorStacks> stacks;
  std::unique_ptr<SfbRoute> route;
};

class SfbRouteTest : public ::testing::Test {
 protected:
  void make(std::uint32_t workers, SfbOptions options = {.piece_bytes = 32, .iterations = 6},
            std::int64_t batch = 3, SendOrder order = SendOrder::kNeed) {
    plan_ = plan_of(workers, batch);
    plan_.send_order = order;
    for (std::uint32_t r = 0; r < workers; ++r) {
      workers_.push_back(std::make_unique<Worker>(plan_, r, options));
    }
    for (std::uint32_t a = 0; a < workers; ++a) {
      for (std::uint32_t b = 0; b < workers; ++b) {
        if (a != b) route(a).stream_opened(WorkerRank(b));
      }
    }
  }
  SfbRoute& route(std::uint32_t rank) { return *workers_[rank]->route; }

  DecodedFactor next(std::uint32_t from, std::uint32_t to) {
    auto outgoing = route(from).next_message(WorkerRank(to));
    EXPECT_TRUE(outgoing) << "worker " << from << " has nothing for " << to;
    return *decode_factor(to_bytes(outgoing->message));
  }
  /// Moves all that waits from one worker to another; what landed.
  std::vector<FactorLanding> move(std::uint32_t from, std::uint32_t to) {
    std::vector<FactorLanding> landings;
    while (auto outgoing = route(from).next_message(WorkerRank(to))) {
      EXPECT_LE(outgoing->message.payload.size(),
                static_cast<std::size_t>(route(from).options().piece_bytes));
      sent_bytes_[outgoing->layer.value()] +=
          outgoing->message.prefix.size() + outgoing->message.payload.size();
      const auto decoded = decode_factor(to_bytes(outgoing->message));
      EXPECT_TRUE(decoded.ok()) << decoded.status();
      landings.push_back(route(to).on_message(WorkerRank(from), *decoded));
      if (repeats_ && landings.back().objection.reason == DataRefusal::kDuplicate) continue;
      EXPECT_FALSE(landings.back().objection) << landings.back().objection.message;
    }
    return landings;
  }
  void move_all() {
    for (std::uint32_t round = 0; round < 2 * workers_.size(); ++round) {
      for (std::uint32_t a = 0; a < workers_.size(); ++a) {
        for (std::uint32_t b = 0; b < workers_.size(); ++b) {
          if (a == b) continue;
          for (const FactorLanding& landing : move(a, b)) {
            if (landing.complete)
              completed_.emplace_back(b, landing.complete->value(), landing.iteration);
          }
        }
      }
    }
  }
  void initialise() {
    route(0).initialise_from_here();
    move_all();
  }
  void expect_stack(std::uint32_t at, LayerIndex layer, Iteration iteration) {
    const StackedFactors stack = workers_[at]->stacks->stacked(layer, iteration);
    const auto check = [&](std::span<const float> values, int base) {
      const std::size_t each = values.size() / workers_.size();
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], Worker::expected(static_cast<std::uint32_t>(i / each), layer,
                                              iteration, base, i % each))
            << "element " << i;
      }
    };
    check(stack.output_gradients, 0);
    check(stack.inputs, 5000);
  }

  Plan plan_;
  bool repeats_ = false;  ///< after a cut, messages may come twice
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<std::uint32_t, std::size_t> sent_bytes_;
  std::vector<std::tuple<std::uint32_t, std::uint32_t, Iteration>> completed_;
};

TEST_F(SfbRouteTest, AloneEverySetIsCompleteAtOnce) {
  make(1);
  route(0).initialise_from_here();
  for (Iteration i = 0; i <= 6; ++i) {
    const FactorLanding landing = workers_[0]->ready(kSecond, i);
    EXPECT_EQ(landing.complete, kSecond);
    EXPECT_EQ(landing.iteration, i);
    EXPECT_EQ(landing.divergence, "");
    if (i < 6) expect_stack(0, kSecond, i);
  }
}

TEST_F(SfbRouteTest, InitialParametersGoFromRankToRank) {
  make(3);
  initialise();
  for (const LayerIndex layer : {kSecond, kThird}) {
    for (std::uint32_t rank = 1; rank < 3; ++rank) {
      EXPECT_TRUE(std::ranges::equal(workers_[rank]->parameters[layer.value()].floats(),
                                     workers_[0]->parameters[layer.value()].floats()));
    }
  }
  EXPECT_EQ(workers_[1]->parameters[0].floats()[0], -7.0f) << "PS layers are the servers' business";
}

TEST_F(SfbRouteTest, SetsAreStackedInRankOrderAndEachCompletesOnceEverywhere) {
  make(3);
  initialise();
  for (Iteration i = 0; i < 6; ++i) {
    completed_.clear();
    for (const std::uint32_t rank : {2u, 0u, 1u}) {
      EXPECT_FALSE(workers_[rank]->ready(kThird, i).complete);
      EXPECT_FALSE(workers_[rank]->ready(kSecond, i).complete);
    }
    move_all();
    EXPECT_EQ(completed_.size(), 6u);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      expect_stack(rank, kSecond, i);
      expect_stack(rank, kThird, i);
      EXPECT_FALSE(route(rank).next_message(WorkerRank((rank + 1) % 3)));
    }
  }
}

TEST_F(SfbRouteTest, BytesPerNodeAreTheFormulasWithinOnePercentHeadersIncluded) {
  // 2 K (P1 - 1) (M + N) floats, sent and received, in pieces of the default size; second has
  // M + N = 16. Large enough that headers are small: K = 2000.
  constexpr std::int64_t kBatch = 2000;
  for (const std::uint32_t workers : {2u, 3u, 4u}) {
    workers_.clear();
    make(workers, {.iterations = 6}, kBatch);
    initialise();
    for (Iteration i = 0; i < 2; ++i) {  // one with digests, one without
      sent_bytes_.clear();
      for (auto& worker : workers_) worker->ready(kSecond, i);
      move_all();
      // What all send is what all receive: per node the mean of both.
      const double per_node = 2.0 * static_cast<double>(sent_bytes_[1]) / workers;
      const double formula = 2.0 * kBatch * (workers - 1) * (6 + 10) * sizeof(float);
      EXPECT_NEAR(per_node / formula, 1.0, 0.01);
      EXPECT_GE(per_node, formula);
    }
  }
}

TEST_F(SfbRouteTest, WhatForwardNeedsFirstLeavesFirst) {
  make(2);
  initialise();
  workers_[0]->ready(kThird, 0);
  EXPECT_EQ(next(0, 1).header.layer, kThird);
  workers_[0]->ready(kSecond, 0);  // ready later, needed earlier
  EXPECT_EQ(next(0, 1).header.layer, kSecond);
  while (auto outgoing = route(0).next_message(WorkerRank(1))) {
    if (outgoing->layer == kThird) break;
    EXPECT_EQ(outgoing->layer, kSecond);
  }
  EXPECT_EQ(next(0, 1).header.layer, kThird);
}

// Otherwise a worker that is behind waits for one that is ahead, and then all wait for it:
// bench/RESULTS.md.
TEST_F(SfbRouteTest, WhatAnEarlierForwardWaitsForLeavesFirst) {
  const auto both_ready = [this](std::uint32_t rank, Iteration iteration) {
    for (const LayerIndex layer : {kThird, kSecond}) workers_[rank]->ready(layer, iteration);
  };
  for (const SendOrder order : kSendOrders) {
    for (const Iteration older : {0, 1, 2, 3}) {  // either slot
      workers_.clear();
      make(2, {.piece_bytes = 32, .iterations = 9}, 3, order);
      initialise();
      for (Iteration i = 0; i < older; ++i) {
        both_ready(0, i), both_ready(1, i);
        move_all();
      }
      // Worker 1's sets have arrived at worker 0, which continues; worker 1 still waits for 0's.
      both_ready(0, older), both_ready(1, older);
      move(1, 0);
      both_ready(0, older + 1);
      std::vector<Iteration> sent;
      while (auto outgoing = route(0).next_message(WorkerRank(1))) {
        sent.push_back(decode_factor(to_bytes(outgoing->message))->header.iteration);
      }
      EXPECT_TRUE(std::is_sorted(sent.begin(), sent.end()));
      EXPECT_EQ(sent.front(), older);
      EXPECT_EQ(sent.back(), older + 1);
    }
  }
}

TEST_F(SfbRouteTest, WhatWasReadyFirstLeavesFirstWhereThePlanSaysSo) {
  make(2, {.piece_bytes = 32, .iterations = 6}, 3, SendOrder::kReady);
  initialise();
  workers_[0]->ready(kThird, 0);
  workers_[0]->ready(kSecond, 0);
  std::vector<LayerIndex> sent;
  while (auto outgoing = route(0).next_message(WorkerRank(1))) sent.push_back(outgoing->layer);
  EXPECT_TRUE(std::is_sorted(sent.begin(), sent.end(), std::greater<>()));
  EXPECT_EQ(sent.front(), kThird);
  EXPECT_EQ(sent.back(), kSecond);
}

TEST_F(SfbRouteTest, AWorkerMayBeOneIterationAheadAndNoMore) {
  make(3);
  initialise();
  for (auto& worker : workers_) worker->ready(kSecond, 0);
  // 0 and 1 have everything; 2 still lacks what 1 sent.
  move(0, 1), move(0, 2), move(1, 0), move(2, 0), move(2, 1);
  workers_[0]->ready(kSecond, 1);
  EXPECT_FALSE(move(0, 2).empty()) << "of iteration 1, while 2 still waits for 0";
  EXPECT_THAT(route(2).awaited(kSecond), ElementsAre(WorkerRank(1)));
  completed_.clear();
  move_all();
  EXPECT_THAT(completed_, ElementsAre(std::tuple(2u, 1u, Iteration{0})));
  expect_stack(2, kSecond, 0);

  workers_[1]->ready(kSecond, 1);
  workers_[2]->ready(kSecond, 1);
  DecodedFactor ahead = next(1, 0);
  ahead.header.iteration = 3;
  const Objection objection = route(0).on_message(WorkerRank(1), ahead).objection;
  EXPECT_EQ(objection.reason, DataRefusal::kIteration);
  EXPECT_THAT(objection.message, HasSubstr("iteration 3 of layer second"));
}

TEST_F(SfbRouteTest, RepetitionsAreIgnoredWhereverTheyComeIn) {
  make(2);
  initialise();
  workers_[0]->ready(kSecond, 0);
  workers_[1]->ready(kSecond, 0);
  std::vector<DecodedFactor> sent;
  while (auto outgoing = route(0).next_message(WorkerRank(1))) {
    sent.push_back(*decode_factor(to_bytes(outgoing->message)));
    EXPECT_FALSE(route(1).on_message(WorkerRank(0), sent.back()).objection);
  }
  move_all();
  const auto repeat = [&] {
    for (const DecodedFactor& message : sent) {
      EXPECT_EQ(route(1).on_message(WorkerRank(0), message).objection.reason,
                DataRefusal::kDuplicate);
    }
  };
  repeat();
  for (Iteration i = 1; i < 5; ++i) {
    for (auto& worker : workers_) worker->ready(kSecond, i);
    repeat();
    move_all();
    repeat();
    expect_stack(1, kSecond, i);
  }
}

TEST_F(SfbRouteTest, ANewStreamRepeatsWhatMayBeLackingAndNothingElse) {
  make(2);
  initialise();
  workers_[0]->ready(kSecond, 0);
  while (route(0).next_message(WorkerRank(1))) {  // all of it is lost in a cut
  }
  route(0).stream_opened(WorkerRank(1));
  workers_[1]->ready(kSecond, 0);
  completed_.clear();
  repeats_ = true;
  move_all();
  EXPECT_EQ(completed_.size(), 2u);

  // 1 is at iteration 1, so it has all of 0's set 0; only set 1 is worth repeating.
  workers_[0]->ready(kSecond, 1);
  workers_[1]->ready(kSecond, 1);
  move(1, 0);
  while (route(0).next_message(WorkerRank(1))) {
  }
  route(0).stream_opened(WorkerRank(1));
  while (auto outgoing = route(0).next_message(WorkerRank(1))) {
    const auto decoded = decode_factor(to_bytes(outgoing->message));
    EXPECT_EQ(decoded->header.iteration, 1);
    EXPECT_NE(decoded->header.kind, FactorKind::kParameters);
    EXPECT_FALSE(route(1).on_message(WorkerRank(0), *decoded).objection);
  }
  expect_stack(1, kSecond, 1);
}

TEST_F(SfbRouteTest, ALostHalfOfTheInitialParametersComesAgain) {
  make(3);
  route(0).initialise_from_here();
  for (int i = 0; i < 5; ++i) route(0).next_message(WorkerRank(1));
  repeats_ = true;
  route(0).stream_opened(WorkerRank(1));
  move_all();
  EXPECT_TRUE(
      std::ranges::equal(workers_[2]->parameters[1].floats(), workers_[0]->parameters[1].floats()));
}

TEST_F(SfbRouteTest, DigestsTravelAtTheBeginningNowAndThenAsVersionsAreSavedAndAtTheEnd) {
  make(2, {.piece_bytes = 32, .iterations = 11, .check_every = 5, .save_every = 3});
  const std::set<Iteration> compared = {0, 3, 5, 6, 9, 10, 11};
  initialise();
  for (Iteration i = 0; i <= 11; ++i) {
    for (auto& worker : workers_) worker->ready(kThird, i, 1000 + static_cast<std::uint64_t>(i));
    int digests = 0, others = 0;
    while (auto outgoing = route(0).next_message(WorkerRank(1))) {
      const auto decoded = decode_factor(to_bytes(outgoing->message));
      (decoded->header.kind == FactorKind::kDigest ? digests : others) += 1;
      route(1).on_message(WorkerRank(0), *decoded);
    }
    EXPECT_EQ(digests, compared.contains(i) ? 1 : 0) << i;
    EXPECT_EQ(others > 0, i < 11) << i;
    EXPECT_EQ(route(0).options().compared_before(i),
              i == 0 ? 0 : *std::prev(compared.lower_bound(i)))
        << i;
    const auto landings = move(1, 0);
    ASSERT_TRUE(landings.back().complete) << i;
    EXPECT_EQ(landings.back().iteration, i);
    EXPECT_EQ(landings.back().divergence, "");
  }
}

TEST_F(SfbRouteTest, DifferentDigestsAreTold) {
  make(3, {.piece_bytes = 32, .iterations = 5, .check_every = 2});
  initialise();
  for (std::uint32_t r = 0; r < 3; ++r) workers_[r]->ready(kThird, 0, r == 1 ? 0xBAD : 0xABC);
  std::string divergence;
  move(1, 0);
  for (const FactorLanding& landing : move(2, 0)) divergence += landing.divergence;
  EXPECT_EQ(divergence,
            "worker 0 has 0000000000000abc, worker 1 has 0000000000000bad, worker 2 has "
            "0000000000000abc");
}

TEST_F(SfbRouteTest, HostileMessagesAreRefusedWithAReasonAndChangeNothing) {
  make(3);
  initialise();
  workers_[0]->ready(kSecond, 0);
  workers_[1]->ready(kSecond, 0);
  std::vector<DecodedFactor> good;  // digest, dY in 3 pieces, X in 4
  while (auto outgoing = route(1).next_message(WorkerRank(0))) {
    good.push_back(*decode_factor(to_bytes(outgoing->message)));
  }
  ASSERT_EQ(good.size(), 8u);
  struct Case {
    DataRefusal reason;
    const char* words;
    std::size_t which;
    std::function<void(DecodedFactor&)> spoil;
  };
  const auto not_finite = [](float value) {
    return [value](DecodedFactor& m) {
      auto floats = std::make_shared<std::vector<float>>(m.payload.size() / sizeof(float), value);
      m.payload.pieces = {as_payload(*floats)};
      m.payload.owner = floats;
    };
  };
  const std::vector<Case> cases = {
      {DataRefusal::kVersion, "version 7", 1, [](auto& m) { m.header.protocol_version = 7; }},
      {DataRefusal::kEpoch, "epoch 8", 1, [](auto& m) { m.header.epoch = Epoch(8); }},
      {DataRefusal::kRank, "3 workers", 1, [](auto& m) { m.header.rank = WorkerRank(3); }},
      {DataRefusal::kRank, "on the stream of worker 1", 1,
       [](auto& m) { m.header.rank = WorkerRank(2); }},
      {DataRefusal::kLayer, "not go by SFB", 1, [](auto& m) { m.header.layer = LayerIndex(0); }},
      {DataRefusal::kLayer, "3 layers", 1, [](auto& m) { m.header.layer = LayerIndex(3); }},
      {DataRefusal::kRows, "rows", 1, [](auto& m) { m.header.rows = 4; }},
      {DataRefusal::kOffset, "offset 3", 1, [](auto& m) { m.header.offset = 3; }},
      {DataRefusal::kOffset, "offset 800", 1, [](auto& m) { m.header.offset = 800; }},
      {DataRefusal::kSize, "payload", 1, [](auto& m) { m.payload.pieces.clear(); }},
      {DataRefusal::kElementType, "element type", 1,
       [](auto& m) { m.header.element_type = ElementType::kNone; }},
      {DataRefusal::kIteration, "no worker can be beyond 1", 1,
       [](auto& m) { m.header.iteration = 2; }},
      {DataRefusal::kIteration, "beyond", 1, [](auto& m) { m.header.iteration = INT64_MAX; }},
      {DataRefusal::kIteration, "no digest", 0, [](auto& m) { m.header.iteration = 1; }},
      {DataRefusal::kMalformed, "without its digest", 0, [](auto& m) { m.header.digest = 0; }},
      {DataRefusal::kNotFinite, "worker 1's output gradient of layer second in iteration 0", 1,
       not_finite(NAN)},
      {DataRefusal::kNotFinite, "worker 1's input of layer second", 5, not_finite(-INFINITY)},
      {DataRefusal::kKind, "from worker 1, worker 0 takes", 1,
       [](auto& m) {
         m.header.kind = FactorKind::kParameters;
         m.header.rows = 0;
       }},
  };
  for (const Case& c : cases) {
    DecodedFactor bad = good[c.which];
    c.spoil(bad);
    const FactorLanding landing = route(0).on_message(WorkerRank(1), bad);
    EXPECT_EQ(std::string(data_refusal_name(landing.objection.reason)), data_refusal_name(c.reason))
        << landing.objection.message;
    EXPECT_THAT(landing.objection.message, HasSubstr(c.words));
    EXPECT_FALSE(landing.complete);
  }
  EXPECT_THAT(workers_[0]->parameters[1].floats().first(3), ElementsAre(0.0f, 1.0f, 2.0f));
  // After all that the good ones still count, once each.
  for (const DecodedFactor& message : good) {
    EXPECT_FALSE(route(0).on_message(WorkerRank(1), message).objection);
  }
  workers_[2]->ready(kSecond, 0);
  const auto landings = move(2, 0);
  EXPECT_EQ(landings.back().complete, kSecond);
  expect_stack(0, kSecond, 0);
}

TEST_F(SfbRouteTest, FactorsAfterTheLastIterationAreRefused) {
  make(2, {.piece_bytes = 32, .iterations = 1});
  initialise();
  for (auto& worker : workers_) worker->ready(kThird, 0);
  DecodedFactor late = next(0, 1);
  while (late.header.kind == FactorKind::kDigest) late = next(0, 1);
  late.header.iteration = 1;
  EXPECT_EQ(route(1).on_message(WorkerRank(0), late).objection.reason, DataRefusal::kIteration);
}

TEST_F(SfbRouteTest, MemoryIsTwoIterationsOfEverybodysFactors) {
  make(3);
  EXPECT_EQ(workers_[0]->stacks->memory_bytes(),
            2 * 3 * 3 * static_cast<std::int64_t>(sizeof(float)) * ((6 + 10) + (4 + 6)));
  EXPECT_THAT(route(0).layers(), ElementsAre(kSecond, kThird));
  EXPECT_THAT(route(0).plan().chunks, ::testing::SizeIs(1));
}

}  // namespace
}  // namespace poseidon::sfb_route_test
