#include "tests/sim/cluster_sim.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/aligned_buffer.h"
#include "common/check.h"
#include "common/digest.h"
#include "common/memory_transport.h"
#include "common/optimizer.h"
#include "common/random.h"
#include "common/traffic.h"
#include "common/wire.h"
#include "server/shard_service.h"
#include "tests/support/toy_plan.h"
#include "worker/syncer.h"

namespace poseidon::sim {
namespace {

constexpr Nanoseconds kVirtualDeadline{std::chrono::minutes(30)};

/// A layer by PS has elements; one by SFB also a matrix, with or without a bias.
struct SimLayer {
  std::int64_t elements = 1;
  std::int64_t outputs = 0, inputs = 0;  ///< 0: by PS
  bool by_factors() const { return outputs > 0; }
};

/// Everything that a seed decides.
struct Scenario {
  std::uint32_t workers = 1, servers = 1;
  std::vector<SimLayer> layers;
  std::int64_t batch_size = 1;
  SfbOptions sfb;
  std::int64_t chunk_elements = 1;
  Iteration iterations = 1;
  OptimizerSpec optimizer;
  MemoryFaults faults;
  Nanoseconds max_compute{0};
  std::int64_t pending_limit_bytes = 0;
};

double one_of(SplitMix64& random, std::initializer_list<double> choices) {
  return choices.begin()[random.below(choices.size())];
}

Scenario draw_scenario(std::uint64_t seed) {
  SplitMix64 random(mix_seed(seed, 1));
  Scenario s;
  s.workers = 1 + static_cast<std::uint32_t>(random.below(5));
  s.servers = 1 + static_cast<std::uint32_t>(random.below(4));
  const std::uint64_t layers = 1 + random.below(5);
  for (std::uint64_t i = 0; i < layers; ++i) {
    SimLayer& layer = s.layers.emplace_back();
    layer.elements = 1 + static_cast<std::int64_t>(random.below(60));
    if (random.below(2) == 0) continue;
    layer.outputs = 1 + static_cast<std::int64_t>(random.below(7));
    layer.inputs = 1 + static_cast<std::int64_t>(random.below(9));
    const bool bias = random.below(2) == 0;
    layer.elements = layer.outputs * layer.inputs + (bias ? layer.outputs : 0);
  }
  s.batch_size = 1 + static_cast<std::int64_t>(random.below(5));
  s.chunk_elements = 1 + static_cast<std::int64_t>(random.below(24));
  s.iterations = 3 + static_cast<Iteration>(random.below(6));
  s.sfb.iterations = s.iterations;
  s.sfb.piece_bytes = static_cast<std::int64_t>(sizeof(float) * (1 + random.below(24)));
  s.sfb.check_every = 1 + static_cast<Iteration>(random.below(4));
  s.optimizer.type = static_cast<OptimizerType>(random.below(3));
  s.optimizer.learning_rate = 0.05;
  s.optimizer.momentum = s.optimizer.type == OptimizerType::kSgd ? one_of(random, {0.0, 0.9}) : 0.0;
  s.optimizer.nesterov = s.optimizer.momentum > 0.0 && random.below(2) == 0;
  s.optimizer.weight_decay = one_of(random, {0.0, 0.01});
  s.faults.min_delay = Nanoseconds(static_cast<std::int64_t>(random.below(1000)));
  s.faults.max_delay = s.faults.min_delay + Milliseconds(random.below(30));
  s.faults.cut = one_of(random, {0.0, 0.0, 0.005, 0.03});
  s.faults.duplicate = one_of(random, {0.0, 0.02, 0.2});
  s.faults.reorder = one_of(random, {0.0, 0.05, 0.5});
  s.max_compute = Milliseconds(static_cast<std::int64_t>(one_of(random, {0, 1, 20})));
  // From none at all (everybody waits for the rank before) to never reached.
  s.pending_limit_bytes = static_cast<std::int64_t>(one_of(random, {1, 100, 1e9}));
  return s;
}

std::string describe(const Scenario& s) {
  const auto by_factors = std::ranges::count_if(s.layers, &SimLayer::by_factors);
  return absl::StrCat(s.workers, " workers, ", s.servers, " servers, ", s.layers.size(),
                      " layers (", by_factors, " by SFB), pieces of ", s.sfb.piece_bytes,
                      " bytes, chunks of ", s.chunk_elements, ", ", s.iterations,
                      " iterations, optimizer ", static_cast<int>(s.optimizer.type), ", cut ",
                      s.faults.cut, ", duplicate ", s.faults.duplicate, ", reorder ",
                      s.faults.reorder, ", holding at most ", s.pending_limit_bytes, " bytes");
}

float initial_value(std::size_t layer, std::size_t element) {
  return static_cast<float>(std::sin(static_cast<double>(layer * 1000 + element)));
}

/// Any function of rank, iteration and the parameters read will do; this one is not linear, so an
/// error in one step shows in all that follow.
float gradient_value(std::uint32_t rank, Iteration iteration, float parameter,
                     std::size_t element) {
  SplitMix64 noise(mix_seed(mix_seed(rank, static_cast<std::uint64_t>(iteration)), element));
  return std::sin(parameter * 3.0f) + noise.uniform() - 0.5f;
}

/// Any function likewise.
void fill_factors(std::uint32_t rank, Iteration iteration, std::span<const float> parameters,
                  std::span<float> output_gradient, std::span<float> input) {
  const auto fill = [&](std::span<float> values, std::uint32_t salt) {
    for (std::size_t e = 0; e < values.size(); ++e) {
      values[e] = gradient_value(rank + salt, iteration, parameters[e % parameters.size()], e);
    }
  };
  fill(output_gradient, 0);
  fill(input, 1000);
}

/// The step that replicas must all make alike.
void step_factors(const SimLayer& layer, const StackedFactors& factors, const OptimizerStep& step,
                  std::span<float> parameters, std::span<float> state0, std::span<float> state1) {
  const auto outputs = static_cast<std::size_t>(layer.outputs);
  const auto inputs = static_cast<std::size_t>(layer.inputs);
  std::vector<float> gradient(parameters.size(), 0.0f);
  for (std::size_t row = 0; row < factors.inputs.size() / inputs; ++row) {
    for (std::size_t m = 0; m < outputs; ++m) {
      const float output_gradient = factors.output_gradients[row * outputs + m];
      for (std::size_t n = 0; n < inputs; ++n) {
        gradient[m * inputs + n] += output_gradient * factors.inputs[row * inputs + n];
      }
      if (gradient.size() > outputs * inputs) gradient[outputs * inputs + m] += output_gradient;
    }
  }
  apply_optimizer(step, gradient, parameters, parameters, state0, state1);
}

/// What one process computes: parameters of every layer after 0, 1, 2, ... steps.
class Reference {
 public:
  explicit Reference(const Scenario& s) {
    std::vector<std::vector<float>> parameters, state0, state1;
    for (std::size_t l = 0; l < s.layers.size(); ++l) {
      const auto n = static_cast<std::size_t>(s.layers[l].elements);
      parameters.emplace_back(n);
      for (std::size_t e = 0; e < n; ++e) parameters[l][e] = initial_value(l, e);
      const int slots = optimizer_state_slots(s.optimizer);
      state0.emplace_back(slots > 0 ? n : 0);
      state1.emplace_back(slots > 1 ? n : 0);
    }
    versions_.push_back(parameters);
    for (Iteration i = 0; i < s.iterations; ++i) {
      const OptimizerStep step =
          make_optimizer_step(s.optimizer, i, 1.0f / static_cast<float>(s.workers));
      for (std::size_t l = 0; l < parameters.size(); ++l) {
        if (s.layers[l].by_factors()) {
          step_by_factors(s, s.layers[l], i, step, parameters[l], state0[l], state1[l]);
          continue;
        }
        std::vector<float> sum(parameters[l].size());
        for (std::uint32_t rank = 0; rank < s.workers; ++rank) {
          for (std::size_t e = 0; e < sum.size(); ++e) {
            const float g = gradient_value(rank, i, parameters[l][e], e);
            sum[e] = rank == 0 ? g : sum[e] + g;
          }
        }
        apply_optimizer(step, sum, parameters[l], parameters[l], state0[l], state1[l]);
      }
      versions_.push_back(parameters);
    }
  }
  const std::vector<float>& at(Iteration version, std::size_t layer) const {
    return versions_[static_cast<std::size_t>(version)][layer];
  }

 private:
  static void step_by_factors(const Scenario& s, const SimLayer& layer, Iteration iteration,
                              const OptimizerStep& step, std::span<float> parameters,
                              std::span<float> state0, std::span<float> state1) {
    const auto gradients = static_cast<std::size_t>(s.batch_size * layer.outputs);
    const auto inputs = static_cast<std::size_t>(s.batch_size * layer.inputs);
    std::vector<float> all_gradients(s.workers * gradients), all_inputs(s.workers * inputs);
    for (std::uint32_t rank = 0; rank < s.workers; ++rank) {
      fill_factors(rank, iteration, parameters,
                   std::span(all_gradients).subspan(rank * gradients, gradients),
                   std::span(all_inputs).subspan(rank * inputs, inputs));
    }
    step_factors(layer, {all_gradients, all_inputs}, step, parameters, state0, state1);
  }

  std::vector<std::vector<std::vector<float>>> versions_;
};

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
        door_(&transport, &refusals_) {
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
    SyncerOptions options;
    options.sfb = s.sfb;
    // Some seeds cut streams faster than a word gets through; that patience ends is tested
    // elsewhere.
    options.give_up_after = kVirtualDeadline;
    syncer_ =
        std::make_unique<Syncer>(&transport, plan, WorkerRank(rank), std::move(layers), options,
                                 this, &traffic_, &refusals_, PeerAccess{&transport, &door_});
    syncer_->start();
  }

  void parameters_ready(LayerIndex layer, Iteration version) override {
    if (version != versions_[layer.value()] + 1) fail("a version was skipped or repeated");
    versions_[layer.value()] = version;
    if (waiting_) forward();
  }
  void factors_complete(LayerIndex layer, Iteration iteration) override {
    if (iteration != complete_[layer.value()] + 1) fail("a set was skipped or repeated");
    complete_[layer.value()] = iteration;
    if (waiting_) forward();
    finish_if_all_agree();
  }
  void sync_failed(const absl::Status& status) override { fail(status.ToString()); }

  bool done() const { return done_; }
  const std::optional<std::string>& failure() const { return failure_; }
  Iteration version(std::size_t layer) const { return versions_[layer]; }

 private:
  void fail(const std::string& what) {
    if (!failure_) failure_ = absl::StrCat("worker ", rank_, " iteration ", iteration_, ": ", what);
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
      finish_if_all_agree();
    }
  }

  /// As the trainer does it: late, when the layer is waited for.
  void step_if_possible() {
    const Iteration version = versions_[layer_];
    const bool can = scenario_.layers[layer_].by_factors() && version >= 0 &&
                     version < iteration_ && complete_[layer_] == version;
    if (!can) return;
    step_factors(scenario_.layers[layer_],
                 syncer_->factors()->route().stacked(LayerIndex(static_cast<std::uint32_t>(layer_)),
                                                     version),
                 make_optimizer_step(scenario_.optimizer, version,
                                     1.0f / static_cast<float>(scenario_.workers)),
                 parameters_[layer_].floats(), state0_[layer_].floats(), state1_[layer_].floats());
    ++versions_[layer_];
  }

  void publish(std::size_t l) {
    const LayerIndex layer(static_cast<std::uint32_t>(l));
    syncer_->factors()->factors_ready(layer, iteration_, digest_of(parameters_[l].floats()));
  }

  void finish_if_all_agree() {
    done_ = last_forward_done_;
    for (std::size_t l = 0; l < complete_.size(); ++l) {
      if (scenario_.layers[l].by_factors() && complete_[l] < scenario_.iterations) done_ = false;
    }
  }

  void backward() {
    --layer_;
    const std::span<const float> read = parameters_[layer_].floats();
    const LayerIndex layer(static_cast<std::uint32_t>(layer_));
    if (scenario_.layers[layer_].by_factors()) {
      const OwnFactors own = syncer_->factors()->route().own(layer, iteration_);
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
  std::unique_ptr<Syncer> syncer_;
  Iteration iteration_ = 0;
  std::size_t layer_ = 0;
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

Plan make_plan(const Scenario& s) {
  std::vector<std::int64_t> elements;
  for (const SimLayer& layer : s.layers) elements.push_back(layer.elements);
  Plan plan = testing_support::toy_plan(s.workers, s.servers, elements, s.chunk_elements);
  plan.batch_size = s.batch_size;
  for (std::uint32_t rank = 0; rank < s.workers; ++rank) {
    plan.worker_addresses[rank] = absl::StrCat("worker", rank);
  }
  for (std::uint32_t l = 0; l < s.layers.size(); ++l) {
    const SimLayer& layer = s.layers[l];
    if (layer.by_factors()) {
      testing_support::send_by_factors(plan, LayerIndex(l), layer.outputs, layer.inputs);
    }
  }
  POSEIDON_CHECK(validate(plan).ok(), "a plan that nodes would take");
  return plan;
}

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

  std::string broken_invariant() const {
    for (const auto& worker : workers_) {
      if (worker->failure()) return *worker->failure();
    }
    // The receiver's window, and one repetition of each message in it.
    if (network_.max_queued_messages() > 4) return "a stream held more messages than its bound";
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      const Shard* shard = servers_[i]->service.shard();
      if (shard == nullptr) continue;  // its assignment is still on the way
      // Each worker may add one message before it is paused; a repetition is not held.
      const std::int64_t one_each =
          scenario_.chunk_elements * static_cast<std::int64_t>(sizeof(float)) * scenario_.workers;
      if (shard->pending_bytes() > scenario_.pending_limit_bytes + one_each) {
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
};

}  // namespace

Outcome simulate(std::uint64_t seed) { return Cluster(seed).run(); }

}  // namespace poseidon::sim
