#include "tests/sim/cluster_sim.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/memory/aligned_buffer.h"
#include "common/probes/traffic.h"
#include "common/tensor/optimizer.h"
#include "common/tensor/scan.h"
#include "common/transport/memory_transport.h"
#include "common/wire/wire.h"
#include "server/shard/shard_service.h"
#include "sync/client/syncer.h"
#include "sync/relay/relay_service.h"
#include "tests/sim/method_transport.h"
#include "tests/sim/scenario.h"

namespace poseidon::sim {
namespace {

constexpr Nanoseconds kVirtualDeadline{std::chrono::minutes(30)};

/// A worker whose engine takes a random time per layer and computes gradient_value.
class SimWorker final : public SyncerEvents {
 public:
  SimWorker(const Scenario& s, const Reference& reference, Transport& transport, const Plan& plan,
            std::uint32_t rank, std::uint64_t seed)
      : scenario_(s),
        reference_(reference),
        transport_(transport),
        rank_(rank),
        random_(mix_seed(seed, 100 + rank)),
        traffic_(plan.layers.size()),
        versions_(plan.layers.size(), -1),
        complete_(plan.layers.size(), -1),
        door_(&transport, &refusals_),
        relays_(&transport, kRelaySuffix),
        relay_(&relays_, &refusals_, {}, s.pending_limit_bytes),
        stacks_(plan, WorkerRank(rank)) {
    const int slots = optimizer_state_slots(s.optimizer);
    std::vector<LayerMemory> layers;
    for (std::size_t l = 0; l < plan.layers.size(); ++l) {
      parameters_.emplace_back(s.layers[l].elements);
      gradients_.emplace_back(s.layers[l].by_factors() ? 0 : s.layers[l].elements);
      state0_.emplace_back(slots > 0 ? s.layers[l].elements : 0);
      state1_.emplace_back(slots > 1 ? s.layers[l].elements : 0);
      // Only worker 0's initial values may count.
      for (std::size_t e = 0; e < parameters_[l].floats().size(); ++e) {
        parameters_[l].floats()[e] = rank == 0 ? initial_value(l, e) : -7.0f;
      }
      layers.push_back({parameters_[l].floats(), gradients_[l].floats(), gradients_[l].owner()});
    }
    POSEIDON_CHECK(transport.listen(plan.worker_addresses[rank], &door_).ok(), "a fresh address");
    POSEIDON_CHECK(relays_.listen(plan.worker_addresses[rank], &relay_).ok(), "a fresh address");
    SyncerOptions options;
    options.sfb = s.sfb;
    // Some seeds cut streams before a message gets through; the end of patience is tested
    // elsewhere.
    options.give_up_after = kVirtualDeadline;
    syncer_ = std::make_unique<Syncer>(&transport, plan, WorkerRank(rank), std::move(layers),
                                       options, this, &traffic_, &refusals_,
                                       PeerAccess{&transport, &door_, &relays_, &relay_}, &stacks_);
    syncer_->start();
  }

  void layer_landed(const LayerLanded& layer) override {
    if (layer.exact) {
      check_exact(layer.layer);
    } else {
      set_version(layer.layer, layer.version);
    }
  }
  void layer_initialised(LayerIndex layer, Iteration version) override {
    set_version(layer, version);
  }
  void factors_complete(LayerIndex layer, Iteration iteration) override {
    if (iteration != complete_[layer.value()] + 1) fail("a set was skipped or repeated");
    complete_[layer.value()] = iteration;
    if (scenario_.optimizer.clip_norm > 0.0 && iteration < scenario_.iterations) measure(layer);
    if (waiting_) forward();
    finish_if_all_agree();
  }
  void norms_complete(Iteration iteration, double all_gradients) override {
    if (iteration != norms_of_ + 1) fail("a norm was skipped or repeated");
    norms_of_ = iteration;
    all_gradients_ = all_gradients;
    if (waiting_) forward();
  }
  void sync_failed(const absl::Status& status) override { fail(status.ToString()); }

  bool done() const { return done_; }
  const std::optional<std::string>& failure() const { return failure_; }
  const Relay* relay() const { return relay_.relay(); }
  /// How many streams of its group its relay does not read from just now.
  std::int64_t paused_by_relay() { return traffic_.node().value(NodeGauge::kPausedStreams); }
  Iteration version(std::size_t layer) const { return versions_[layer]; }

 private:
  void fail(const std::string& what) {
    if (!failure_) failure_ = absl::StrCat("worker ", rank_, " iteration ", iteration_, ": ", what);
  }

  void set_version(LayerIndex layer, Iteration version) {
    if (version != versions_[layer.value()] + 1) fail("a version was skipped or repeated");
    versions_[layer.value()] = version;
    if (waiting_) forward();
  }

  void check_exact(LayerIndex layer) {
    if (!std::ranges::equal(parameters_[layer.value()].floats(), reference_.exact(layer.value()))) {
      fail(
          absl::StrCat("layer ", layer.value(), " ended with other parameters than the optimizer"));
    }
    ++exact_layers_;
    finish_if_all_agree();
  }

  void after_compute(void (SimWorker::*next)()) {
    const auto range = static_cast<std::uint64_t>(scenario_.max_compute.count());
    transport_.post_after(Nanoseconds(static_cast<std::int64_t>(random_.below(range + 1))),
                          [this, next] { (this->*next)(); });
  }

  /// One layer; after the last iteration only to look at the final parameters.
  void forward() {
    step_if_possible();
    waiting_ = versions_[layer_] < iteration_;
    if (waiting_) return;
    if (!std::ranges::equal(parameters_[layer_].floats(), reference_.at(iteration_, layer_))) {
      fail(absl::StrCat("layer ", layer_, " read other parameters than a single process has"));
    }
    if (++layer_ < parameters_.size()) {
      after_compute(&SimWorker::forward);
    } else if (iteration_ < scenario_.iterations) {
      after_compute(&SimWorker::backward);
    } else {
      last_forward_done_ = true;
      for (std::size_t l = 0; l < parameters_.size(); ++l) {
        if (scenario_.layers[l].by_factors()) publish(l);
      }
      if (scenario_.wire_type != ElementType::kFloat32) syncer_->fetch_exact();
      finish_if_all_agree();
    }
  }

  /// As the trainer does it: late, when the layer is waited for.
  void step_if_possible() {
    const Iteration version = versions_[layer_];
    const bool clips = scenario_.optimizer.clip_norm > 0.0;
    const bool can = scenario_.layers[layer_].by_factors() && version >= 0 &&
                     version < iteration_ && complete_[layer_] == version &&
                     (!clips || norms_of_ == version);
    if (!can) return;
    const LayerIndex index(static_cast<std::uint32_t>(layer_));
    const SimLayer& layer = scenario_.layers[layer_];
    const std::vector<float> gradient = gradient_of(layer, stacks_.stacked(index, version));
    step_layer(scenario_, layer, version, gradient,
               squares_of(scenario_, layer, gradient, parameters_[layer_].floats()), all_gradients_,
               parameters_[layer_].floats(), state0_[layer_].floats(), state1_[layer_].floats());
    ++versions_[layer_];
  }

  /// The layer's squares, some time later: from the loop, never within an event.
  void measure(LayerIndex index) {
    const auto range = static_cast<std::uint64_t>(scenario_.max_compute.count());
    transport_.post_after(
        Nanoseconds(static_cast<std::int64_t>(random_.below(range + 1))), [this, index] {
          const SimLayer& layer = scenario_.layers[index.value()];
          const Iteration iteration = complete_[index.value()];
          const std::vector<float> gradient = gradient_of(layer, stacks_.stacked(index, iteration));
          syncer_->layer_measured(
              index, iteration,
              squares_of(scenario_, layer, gradient, parameters_[index.value()].floats()));
        });
  }

  void publish(std::size_t l) {
    const LayerIndex layer(static_cast<std::uint32_t>(l));
    syncer_->factors_ready(layer, iteration_, digest_of(parameters_[l].floats()));
  }

  void finish_if_all_agree() {
    done_ = last_forward_done_;
    std::size_t rounded_layers = 0;
    for (std::size_t l = 0; l < complete_.size(); ++l) {
      if (!scenario_.layers[l].by_factors()) {
        ++rounded_layers;
      } else if (complete_[l] < scenario_.iterations) {
        done_ = false;
      }
    }
    if (scenario_.wire_type != ElementType::kFloat32 && exact_layers_ < rounded_layers) {
      done_ = false;
    }
  }

  void backward() {
    --layer_;
    const std::span<const float> read = parameters_[layer_].floats();
    const LayerIndex layer(static_cast<std::uint32_t>(layer_));
    if (scenario_.layers[layer_].by_factors()) {
      const OwnFactors own = stacks_.own(layer, iteration_);
      fill_factors(rank_, iteration_, read, own.output_gradient, own.input);
      publish(layer_);
    } else {
      for (std::size_t e = 0; e < read.size(); ++e) {
        gradients_[layer_].floats()[e] = gradient_value(rank_, iteration_, read[e], e);
      }
      syncer_->gradient_ready(layer, iteration_);
    }
    if (layer_ > 0) {
      after_compute(&SimWorker::backward);
    } else {
      ++iteration_;
      after_compute(&SimWorker::forward);
    }
  }

  const Scenario& scenario_;
  const Reference& reference_;
  Transport& transport_;
  const std::uint32_t rank_;
  SplitMix64 random_;
  TrafficProbe traffic_;
  RefusalCounts refusals_;
  std::vector<Iteration> versions_;
  std::vector<Iteration> complete_;  ///< by layer: newest set of factors that is whole
  std::vector<FloatBuffer> parameters_, gradients_, state0_, state1_;
  PeerDoor door_;
  MethodTransport relays_;
  RelayService relay_;
  FactorStacks stacks_;
  std::unique_ptr<Syncer> syncer_;
  Iteration norms_of_ = -1;
  double all_gradients_ = 0.0;  ///< of norms_of_
  Iteration iteration_ = 0;
  std::size_t layer_ = 0;
  std::size_t exact_layers_ = 0;
  bool waiting_ = true;  ///< forward stands still until the next layer lands
  bool last_forward_done_ = false;
  bool done_ = false;
  std::optional<std::string> failure_;
};

struct SimServer {
  SimServer(Transport& transport, const std::string& address, std::int64_t pending_limit_bytes)
      : service(&transport, &refusals, {}, pending_limit_bytes) {
    POSEIDON_CHECK(transport.listen(address, &service).ok(), "a fresh address");
  }
  RefusalCounts refusals;
  ShardService service;
};

class Cluster {
 public:
  explicit Cluster(std::uint64_t seed)
      : scenario_(draw_scenario(seed)),
        plan_(make_plan(scenario_)),
        reference_(scenario_),
        network_(mix_seed(seed, 2), scenario_.faults) {
    for (std::uint32_t i = 0; i < scenario_.servers; ++i) {
      const std::string& address = plan_.server_addresses[i];
      servers_.push_back(std::make_unique<SimServer>(network_.endpoint(address), address,
                                                     scenario_.pending_limit_bytes));
      servers_.back()->service.assign(plan_, ServerIndex(i), scenario_.optimizer,
                                      std::make_shared<TrafficProbe>(plan_.layers.size()), [] {});
    }
    for (std::uint32_t rank = 0; rank < scenario_.workers; ++rank) {
      workers_.push_back(std::make_unique<SimWorker>(
          scenario_, reference_, network_.endpoint(absl::StrCat("worker", rank)), plan_, rank,
          seed));
    }
    paused_.resize(workers_.size());
  }

  Outcome run() {
    Outcome outcome;
    outcome.description = describe(scenario_);
    while (outcome.failure.empty() && !all_done()) {
      if (!network_.step()) {
        outcome.failure = "nothing will ever happen again, and not every worker is done";
      } else if (network_.now() > kVirtualDeadline) {
        outcome.failure = "not done within the virtual deadline";
      } else {
        outcome.failure = broken_invariant();
      }
      outcome.relay_pauses += new_pauses_by_relays();
      ++outcome.steps;
    }
    outcome.ok = outcome.failure.empty();
    outcome.cuts = network_.cuts();
    outcome.duplicates = network_.duplicates();
    outcome.reorders = network_.reorders();
    return outcome;
  }

 private:
  bool all_done() const {
    return std::ranges::all_of(workers_, [](const auto& worker) { return worker->done(); });
  }

  /// By how much paused streams have become more in the last step.
  std::int64_t new_pauses_by_relays() {
    std::int64_t more = 0;
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      const std::int64_t now = workers_[rank]->paused_by_relay();
      more += std::max<std::int64_t>(0, now - std::exchange(paused_[rank], now));
    }
    return more;
  }

  std::string broken_invariant() const {
    for (const auto& worker : workers_) {
      if (worker->failure()) return *worker->failure();
    }
    // The receiver's window, and one repetition of each message in it.
    if (network_.max_queued_messages() > 4) return "a stream held more messages than its bound";
    // Each worker may add one message before it is paused; a repetition is not held.
    const std::int64_t message_bytes =
        scenario_.chunk_elements * static_cast<std::int64_t>(sizeof(float));
    for (std::uint32_t rank = 0; rank < scenario_.workers; ++rank) {
      const Relay* relay = workers_[rank]->relay();
      if (relay == nullptr) continue;
      const std::int64_t group = std::ranges::count(plan_.leaders, WorkerRank(rank));
      if (relay->pending_bytes() > scenario_.pending_limit_bytes + group * message_bytes) {
        return "a relay holds more early contributions than the limit allows";
      }
    }
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      const Shard* shard = servers_[i]->service.shard();
      if (shard == nullptr) continue;  // its assignment is still on the way
      if (shard->pending_bytes() >
          scenario_.pending_limit_bytes + scenario_.workers * message_bytes) {
        return "more early contributions are held than the limit allows";
      }
      for (const ChunkId chunk : shard->owned_chunks()) {
        const std::size_t layer = plan_.chunks[chunk.value()].layer.value();
        for (const auto& worker : workers_) {
          const Iteration ahead = shard->version(chunk) - worker->version(layer);
          if (ahead < 0 || (ahead > 1 && shard->version(chunk) > 0)) {
            return absl::StrCat("server ", i, " chunk ", chunk.value(), " is at version ",
                                shard->version(chunk), ", a worker at ", worker->version(layer));
          }
        }
      }
    }
    return "";
  }

  const Scenario scenario_;
  const Plan plan_;
  const Reference reference_;
  MemoryNetwork network_;
  std::vector<std::unique_ptr<SimServer>> servers_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::vector<std::int64_t> paused_;  ///< by rank, streams of its group
};

}  // namespace

Outcome simulate(std::uint64_t seed) { return Cluster(seed).run(); }

}  // namespace poseidon::sim
