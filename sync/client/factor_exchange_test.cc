// Workers' streams to each other on the in-memory network: sets arrive, strangers and liars are
// refused with a reason, and a worker that does not answer is named.

#include "sync/client/factor_exchange.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/memory/aligned_buffer.h"
#include "common/transport/memory_transport.h"
#include "gmock/gmock.h"
#include "tests/support/mute_peer.h"
#include "tests/support/toy_plan.h"

namespace poseidon::factor_exchange_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr LayerIndex kLayer{0};

Plan plan_of(std::uint32_t workers) {
  Plan plan = testing_support::toy_plan(workers, 1, {15}, 8);
  testing_support::send_by_factors(plan, kLayer, 3, 4);  // 3 x 4 and a bias
  plan.batch_size = 2;
  for (std::uint32_t r = 0; r < workers; ++r) {
    plan.worker_addresses[r] = absl::StrCat("worker", r);
  }
  EXPECT_TRUE(validate(plan).ok()) << validate(plan);
  return plan;
}

SyncerOptions options_of_test() {
  SyncerOptions options;
  options.sfb = {.piece_bytes = 16, .iterations = 4, .check_every = 2};
  return options;
}

/// A worker: its door is there from the start, its job when `begin` is called.
struct Worker final : SyncerEvents {
  Worker(MemoryNetwork& network, const Plan& plan, std::uint32_t rank)
      : transport(network.endpoint(absl::StrCat("worker", rank))),
        door(&transport, &refusals,
             [this](const std::string& peer, const Objection& objection) {
               logged.push_back(absl::StrCat(peer, ": ", objection.message));
             }),
        stacks(plan, WorkerRank(rank)),
        plan_(plan),
        rank_(rank) {
    EXPECT_TRUE(transport.listen(absl::StrCat("worker", rank), &door).ok());
  }
  void begin() {
    exchange = std::make_unique<FactorExchange>(
        plan_, WorkerRank(rank_),
        std::vector<LayerMemory>{{.parameters = parameters.floats(), .owner = parameters.owner()}},
        &stacks, PeerAccess{&transport, &door}, options_of_test(), this, &traffic, &refusals);
    exchange->start();
  }
  void ready(Iteration iteration, std::uint64_t digest = 5) {
    const OwnFactors own = stacks.own(kLayer, iteration);
    std::ranges::fill(own.output_gradient, static_cast<float>(rank_));
    std::ranges::fill(own.input, static_cast<float>(iteration));
    exchange->factors_ready(kLayer, iteration, digest);
  }
  void layer_initialised(LayerIndex /*layer*/, Iteration version) override {
    initialised = version == 0;
  }
  void factors_complete(LayerIndex /*layer*/, Iteration iteration) override {
    complete = iteration;
  }
  void sync_failed(const absl::Status& status) override { failure = status; }

  Transport& transport;
  RefusalCounts refusals;
  std::vector<std::string> logged;  ///< refusals, with the sender and the message
  TrafficProbe traffic{1};
  PeerDoor door;
  FloatBuffer parameters{15};
  FactorStacks stacks;
  bool initialised = false;
  Iteration complete = -1;
  std::optional<absl::Status> failure;
  std::unique_ptr<FactorExchange> exchange;

 private:
  const Plan plan_;
  const std::uint32_t rank_;
};

/// A peer made of words: either end of a stream, played by hand.
struct Puppet final : StreamHandler, Acceptor {
  StreamHandler* on_accept(std::unique_ptr<Stream> accepted) override {
    stream = std::move(accepted);
    return this;
  }
  ReadNext on_message(Bytes message) override {
    const auto decoded = decode_factor(message);
    EXPECT_TRUE(decoded.ok());
    heard.push_back(decoded->header);
    return ReadNext::kContinue;
  }
  void on_written() override {}
  void on_closed(const absl::Status& status) override { closed = status; }
  void say(const FactorHeader& header, const std::vector<float>& floats = {}) {
    std::string bytes = encode_prefix(header, floats.size() * sizeof(float)).str();
    bytes.append(reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float));
    stream->write({.prefix = bytes});
  }
  std::unique_ptr<Stream> stream;
  std::vector<FactorHeader> heard;
  std::optional<absl::Status> closed;
};

class FactorExchangeTest : public ::testing::Test {
 protected:
  void make(std::uint32_t workers, std::uint32_t real) {
    plan_ = plan_of(workers);
    for (std::uint32_t r = 0; r < workers; ++r) {
      if ((real >> r & 1) != 0) workers_[r] = std::make_unique<Worker>(network_, plan_, r);
    }
  }
  void begin_all() {
    for (auto& [rank, worker] : workers_) worker->begin();
  }
  void run(Nanoseconds time = Milliseconds(500)) {
    const Nanoseconds until = network_.now() + time;
    // An event of the test's own, so that time passes even when nothing happens.
    network_.endpoint("clock").post_after(time, [] {});
    while (network_.now() < until && network_.step()) {
    }
  }
  FactorHeader header(FactorKind kind, std::uint32_t rank) const {
    FactorHeader h;
    h.kind = kind;
    h.epoch = plan_.epoch;
    h.rank = WorkerRank(rank);
    return h;
  }
  /// A good piece of dY (2 x 3 in pieces of 4) of iteration 0.
  FactorHeader piece(std::uint32_t rank) const {
    FactorHeader h = header(FactorKind::kOutputGradient, rank);
    h.rows = 2;
    h.element_type = ElementType::kFloat32;
    return h;
  }
  std::unique_ptr<Puppet> connect(const std::string& address) {
    auto puppet = std::make_unique<Puppet>();
    puppet->stream = network_.endpoint("puppet").connect(address, puppet.get());
    return puppet;
  }

  MemoryNetwork network_{1, MemoryFaults{}};
  Plan plan_;
  std::map<std::uint32_t, std::unique_ptr<Worker>> workers_;
};

TEST_F(FactorExchangeTest, SetsTravelBetweenAllAndTheEndIsAgreedOn) {
  make(3, 0b111);
  workers_[0]->parameters.floats()[14] = 2.5f;
  begin_all();
  run();
  for (auto& [rank, worker] : workers_) {
    EXPECT_TRUE(worker->initialised);
    EXPECT_EQ(worker->parameters.floats()[14], 2.5f);
  }
  for (Iteration i = 0; i <= 4; ++i) {
    for (auto& [rank, worker] : workers_) worker->ready(std::min<Iteration>(i, 4));
    run();
    for (auto& [rank, worker] : workers_) {
      EXPECT_EQ(worker->complete, i) << "worker " << rank;
      EXPECT_FALSE(worker->failure) << *worker->failure;
      if (i == 4) continue;
      const auto stack = worker->stacks.stacked(kLayer, i);
      EXPECT_EQ(stack.output_gradients[6 * 2], 2.0f);
      EXPECT_EQ(stack.inputs[0], static_cast<float>(i));
    }
  }
  // 4 iterations of 2 K (P1 - 1) (M + N) floats, and the parameters once along the chain.
  const auto& traffic = workers_[1]->traffic;
  EXPECT_EQ(traffic.sent_bytes(kLayer) + traffic.received_bytes(kLayer),
            4u * (2 * 2 * 2 * (3 + 4)) * sizeof(float) + 2 * 15 * sizeof(float));
}

TEST_F(FactorExchangeTest, AWorkerThatIsAssignedLaterIsWaitedFor) {
  make(2, 0b11);
  workers_[0]->begin();
  run(std::chrono::minutes(2));
  EXPECT_FALSE(workers_[0]->failure);
  EXPECT_EQ(workers_[1]->refusals.of(DataRefusal::kNoAssignment), 0u) << "nobody did wrong";
  workers_[1]->begin();
  run(Milliseconds(3000));
  EXPECT_TRUE(workers_[1]->initialised);
}

// Every attempt takes five seconds to fail, the first one too.
TEST_F(FactorExchangeTest, AnOutageBeginsWithTheFirstAttempt) {
  Transport& transport = network_.endpoint("worker1");
  testing_support::MutePeer mute(&transport, std::chrono::seconds(5));
  make(2, 0b01);
  ASSERT_TRUE(transport.listen("worker1", &mute).ok());
  begin_all();
  const Nanoseconds patience = options_of_test().give_up_after;
  run(patience - Milliseconds(100));
  EXPECT_FALSE(workers_[0]->failure) << *workers_[0]->failure;
  run(Milliseconds(3000));
  ASSERT_TRUE(workers_[0]->failure);
  EXPECT_THAT(std::string(workers_[0]->failure->message()),
              HasSubstr("worker 1 at worker1 could not be reached for 3"));
}

TEST_F(FactorExchangeTest, ADoorFullOfStrangersEndsNoRun) {
  make(2, 0b11);
  std::vector<std::unique_ptr<Puppet>> strangers;
  for (std::size_t i = 0; i < kMaxUnboundPeerStreams; ++i) strangers.push_back(connect("worker1"));
  run();
  const auto one_more = connect("worker1");
  run();
  ASSERT_TRUE(one_more->closed);
  EXPECT_THAT(std::string(one_more->closed->message()), HasSubstr("256 streams"));
  begin_all();
  run(Milliseconds(2000));
  EXPECT_FALSE(workers_[1]->initialised);
  EXPECT_FALSE(workers_[0]->failure) << *workers_[0]->failure;
  run(kHelloTimeout - Milliseconds(1000));  // they are silent for too long
  EXPECT_TRUE(workers_[1]->initialised);
  EXPECT_FALSE(workers_[0]->failure || workers_[1]->failure);
}

TEST_F(FactorExchangeTest, StrangersAreTurnedAwayWithAReason) {
  make(3, 0b010);
  begin_all();
  Worker& host = *workers_[1];
  const auto refused = [&](const std::string& raw, DataRefusal reason, const char* words) {
    const std::uint64_t before = host.refusals.of(reason);
    const auto puppet = connect("worker1");
    puppet->stream->write({.prefix = raw});
    run();
    ASSERT_TRUE(puppet->closed) << words;
    EXPECT_TRUE(absl::IsInvalidArgument(*puppet->closed)) << *puppet->closed;
    EXPECT_THAT(std::string(puppet->closed->message()),
                AllOf(HasSubstr(data_refusal_name(reason)), HasSubstr(words)));
    EXPECT_EQ(host.refusals.of(reason), before + 1);
    EXPECT_THAT(host.logged.back(), AllOf(StartsWith("puppet"), HasSubstr(words)));
  };
  const auto hello = [&](const std::function<void(FactorHeader&)>& spoil) {
    FactorHeader h = header(FactorKind::kHello, 0);
    spoil(h);
    return encode_prefix(h, 0).str();
  };
  refused("\xFF\xFF\xFF\xFF\xFF\xFF", DataRefusal::kMalformed, "not a FactorMessage");
  refused(encode_prefix(piece(0), 0).str(), DataRefusal::kKind,
          "first message of a stream is HELLO");
  refused(hello([](auto& h) { ++h.protocol_version; }), DataRefusal::kVersion, "same Poseidon");
  refused(hello([](auto& h) { h.epoch = Epoch(4); }), DataRefusal::kEpoch, "epoch 4");
  refused(hello([](auto& h) { h.rank = WorkerRank(3); }), DataRefusal::kRank, "3 workers");
  refused(hello([](auto& h) { h.rank = WorkerRank(1); }), DataRefusal::kRank, "lower rank does");
  refused(hello([](auto& h) { h.rank = WorkerRank(2); }), DataRefusal::kRank, "lower rank does");

  const auto early = connect("worker1");
  early->say([&] {
    FactorHeader h = header(FactorKind::kHello, 0);
    h.epoch = Epoch(6);
    return h;
  }());
  const auto silent = connect("worker1");
  run();
  EXPECT_TRUE(absl::IsAborted(*early->closed)) << "comes again once we have the new plan too";
  EXPECT_FALSE(silent->closed);
  run(kHelloTimeout);
  EXPECT_TRUE(absl::IsUnavailable(*silent->closed));
  EXPECT_FALSE(host.failure && !absl::IsUnavailable(*host.failure));
}

TEST_F(FactorExchangeTest, WhoDoesNotProveItsRankDisplacesNobody) {
  make(2, 0b00);
  // What worker 0 shows to worker 1 is 70, and back 71.
  Plan plan = plan_;
  plan.proofs = {.expected = {1, 71}, .to_servers = {5}, .to_workers = {1, 70}};
  workers_[0] = std::make_unique<Worker>(network_, plan, 0);
  plan.proofs = {.expected = {70, 1}, .to_servers = {5}, .to_workers = {71, 1}};
  workers_[1] = std::make_unique<Worker>(network_, plan, 1);
  begin_all();
  run();
  ASSERT_TRUE(workers_[1]->initialised);
  for (const std::uint64_t proof : {0, 71, 5}) {
    const auto stranger = connect("worker1");
    FactorHeader hello = header(FactorKind::kHello, 0);
    hello.proof = proof;
    stranger->say(hello);
    run();
    ASSERT_TRUE(stranger->closed.has_value());
    EXPECT_THAT(std::string(stranger->closed->message()),
                HasSubstr("refused (proof): a stream as worker 0"));
  }
  EXPECT_EQ(workers_[1]->refusals.of(DataRefusal::kProof), 3U);
  for (const std::uint32_t rank : {0, 1}) workers_[rank]->ready(0);
  run();
  for (const std::uint32_t rank : {0, 1}) {
    EXPECT_EQ(workers_[rank]->complete, 0) << "worker " << rank;
    EXPECT_FALSE(workers_[rank]->failure.has_value()) << *workers_[rank]->failure;
  }
}

// A machine that got the address of a worker answers in its stead.
TEST_F(FactorExchangeTest, WhoAnswersWithoutTheProofIsNoWorker) {
  Plan plan = plan_of(2);
  plan.proofs = {.expected = {1, 71}, .to_servers = {5}, .to_workers = {1, 70}};
  plan_ = plan;
  workers_[0] = std::make_unique<Worker>(network_, plan, 0);
  Puppet stranger;
  ASSERT_TRUE(network_.endpoint("worker1").listen("worker1", &stranger).ok());
  workers_[0]->begin();
  run(Milliseconds(20));
  ASSERT_EQ(stranger.heard.size(), 1U);
  EXPECT_EQ(stranger.heard[0].proof, 70U);
  stranger.say(header(FactorKind::kHello, 1));
  run();
  ASSERT_TRUE(workers_[0]->failure.has_value());
  EXPECT_THAT(std::string(workers_[0]->failure->message()), HasSubstr("(proof)"));
}

TEST_F(FactorExchangeTest, WithoutAJobStreamsAreAskedToComeAgain) {
  make(2, 0b10);
  const auto puppet = connect("worker1");
  puppet->say(header(FactorKind::kHello, 0));
  run();
  ASSERT_TRUE(puppet->closed);
  EXPECT_TRUE(absl::IsAborted(*puppet->closed)) << *puppet->closed;
}

TEST_F(FactorExchangeTest, WhoConnectedAndSendsNonsenseHearsWhyAndDoesNoHarm) {
  make(2, 0b10);
  begin_all();
  Worker& host = *workers_[1];
  struct Case {
    DataRefusal reason;
    std::function<void(FactorHeader&)> spoil;
    std::vector<float> payload;
  };
  const std::vector<float> good = {1, 2, 3, 4};
  const std::vector<Case> cases = {
      {DataRefusal::kRank, [](auto& h) { h.rank = WorkerRank(1); }, good},
      {DataRefusal::kRows, [](auto& h) { h.rows = 3; }, good},
      {DataRefusal::kLayer, [](auto& h) { h.layer = LayerIndex(1); }, good},
      {DataRefusal::kIteration, [](auto& h) { h.iteration = 2; }, good},
      {DataRefusal::kEpoch, [](auto& h) { h.epoch = Epoch(4); }, good},
      {DataRefusal::kSize, [](auto& /*h*/) {}, {1, 2, 3}},
      {DataRefusal::kOffset, [](auto& h) { h.offset = 2; }, good},
      {DataRefusal::kNotFinite, [](auto& /*h*/) {}, {1, NAN, 3, 4}},
  };
  for (const Case& c : cases) {
    const auto puppet = connect("worker1");
    puppet->say(header(FactorKind::kHello, 0));
    run();
    ASSERT_EQ(puppet->heard.size(), 1u);
    EXPECT_EQ(puppet->heard[0].kind, FactorKind::kHello);
    FactorHeader bad = piece(0);
    c.spoil(bad);
    puppet->say(bad, c.payload);
    run();
    ASSERT_TRUE(puppet->closed) << data_refusal_name(c.reason);
    EXPECT_TRUE(absl::IsInvalidArgument(*puppet->closed)) << *puppet->closed;
    EXPECT_THAT(std::string(puppet->closed->message()), HasSubstr(data_refusal_name(c.reason)));
    EXPECT_EQ(host.refusals.of(c.reason), 1u);
    EXPECT_EQ(host.logged.size(), static_cast<std::size_t>(&c - cases.data()) + 1);
    EXPECT_THAT(host.logged.back(), StartsWith("puppet"));
    EXPECT_FALSE(host.failure) << *host.failure;
  }
}

TEST_F(FactorExchangeTest, WhoWasConnectedToAndSendsNonsenseFailsTheRunByName) {
  for (const bool not_finite : {false, true}) {
    MemoryNetwork network(1, MemoryFaults{});
    plan_ = plan_of(2);
    Worker real(network, plan_, 0);
    Puppet liar;
    ASSERT_TRUE(network.endpoint("worker1").listen("worker1", &liar).ok());
    real.begin();
    while (liar.heard.empty() && network.step()) {
    }
    liar.say(header(FactorKind::kHello, 1));
    FactorHeader bad = piece(1);
    bad.rows = not_finite ? 2 : 7;
    liar.say(bad, {1, 2, INFINITY, 4});
    while (!real.failure && network.step()) {
    }
    ASSERT_TRUE(real.failure);
    EXPECT_TRUE(absl::IsDataLoss(*real.failure));
    EXPECT_THAT(std::string(real.failure->message()),
                AllOf(HasSubstr("worker 1 at worker1"),
                      HasSubstr(not_finite ? "not_finite" : "rows"), HasSubstr("layer0")));
  }
}

TEST_F(FactorExchangeTest, DivergenceStopsTheRunNamingLayerIterationAndRanks) {
  make(3, 0b111);
  begin_all();
  run();
  for (Iteration i = 0; i <= 2; ++i) {
    for (auto& [rank, worker] : workers_) worker->ready(i, rank == 2 && i == 2 ? 0xBAD : 0x600D);
    run();
  }
  // The worker that notices it first leaves; the coordinator tells the others.
  int failures = 0;
  for (auto& [rank, worker] : workers_) {
    EXPECT_EQ(worker->complete, 1) << "nobody steps with it";
    EXPECT_EQ(worker->traffic.node().counted(NodeCount::kReplicasDiffer),
              worker->failure ? 1u : 0u);
    if (!worker->failure) continue;
    ++failures;
    EXPECT_TRUE(absl::IsDataLoss(*worker->failure));
    EXPECT_THAT(std::string(worker->failure->message()),
                AllOf(HasSubstr("layer layer0 differ after 2 iterations"),
                      HasSubstr("worker 0 has 000000000000600d"),
                      HasSubstr("worker 2 has 0000000000000bad")));
  }
  EXPECT_GE(failures, 1);
}

TEST_F(FactorExchangeTest, AWorkerThatIsNotThereIsNamed) {
  make(2, 0b01);
  begin_all();
  run(std::chrono::minutes(1));
  ASSERT_TRUE(workers_[0]->failure);
  EXPECT_TRUE(absl::IsUnavailable(*workers_[0]->failure));
  EXPECT_THAT(std::string(workers_[0]->failure->message()),
              AllOf(HasSubstr("worker 1 at worker1"), HasSubstr("poseidon-worker running")));
}

TEST_F(FactorExchangeTest, AWorkerThatConnectedAndLeftIsNamedToo) {
  make(2, 0b10);
  begin_all();
  {
    const auto puppet = connect("worker1");
    puppet->say(header(FactorKind::kHello, 0));
    run();
  }
  run(Milliseconds(29000));
  EXPECT_FALSE(workers_[1]->failure);
  run(Milliseconds(3000));
  ASSERT_TRUE(workers_[1]->failure);
  EXPECT_THAT(std::string(workers_[1]->failure->message()),
              AllOf(HasSubstr("worker 0 at worker0"), HasSubstr("30000 ms")));
}

TEST(PeerDoor, WhatIsRefusedIsLoggedWithWhoseItIs) {
  MemoryNetwork network(1, {});
  RefusalCounts refusals;
  std::vector<std::string> logged;
  PeerDoor door(&network.endpoint("worker"), &refusals,
                [&](const std::string& peer, const Objection& objection) {
                  logged.push_back(peer + ": " + objection.message);
                });
  ASSERT_TRUE(network.endpoint("worker").listen("worker", &door).ok());
  Puppet puppet;
  puppet.stream = network.endpoint("puppet").connect("worker", &puppet);
  puppet.stream->write({.prefix = MessagePrefix("\xff\xff\xff\xff\xff\xff")});
  while (network.step()) {
  }
  EXPECT_EQ(refusals.of(DataRefusal::kMalformed), 1u);
  EXPECT_THAT(logged, ::testing::ElementsAre(HasSubstr("puppet: not a FactorMessage")));
}

}  // namespace
}  // namespace poseidon::factor_exchange_test
