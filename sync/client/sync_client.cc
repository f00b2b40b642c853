#include "sync/client/sync_client.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/tensor/scan.h"
#include "sync/relay/relay.h"

namespace poseidon {
namespace {

/// How long to wait for the loop to name the awaited nodes, for an error message.
constexpr Milliseconds kAwaitedPatience{2000};

Nanoseconds now() { return SystemClock().now(); }

/// Null when the plan has no SFB layers. `engine` has the memory.
std::unique_ptr<FactorStacks> stacks_of(const Plan& plan, WorkerRank rank, FactorEngine* engine) {
  const bool has_sfb_layers = std::ranges::any_of(
      plan.layers, [](const PlanLayer& layer) { return layer.scheme == Scheme::kSfb; });
  if (!has_sfb_layers) return nullptr;
  POSEIDON_CHECK(engine != nullptr, "a plan with SFB layers needs an engine that steps them");
  return std::make_unique<FactorStacks>(
      plan, rank, [engine](std::int64_t elements) { return engine->allocate(elements); });
}

}  // namespace

SyncClient::SyncClient(Transport* transport, Plan plan, WorkerRank rank,
                       std::vector<LayerMemory> layers, SyncClientOptions options,
                       TrafficProbe* traffic, RefusalCounts* refusals, PeerAccess peers,
                       FactorEngine* engine)
    : transport_(transport),
      plan_(std::move(plan)),
      rank_(rank),
      options_(std::move(options)),
      traffic_(traffic),
      engine_(engine),
      factor_options_(options_.syncer.factor_options()),
      stacks_(stacks_of(plan_, rank, engine)),
      versions_(plan_.layers.size(), options_.syncer.first_iteration - 1),
      arriving_(plan_.layers.size()),
      complete_(plan_.layers.size(), options_.syncer.first_iteration - 1),
      measured_(plan_.layers.size(), options_.syncer.first_iteration - 1),
      exact_(plan_.layers.size(), false),
      gradient_since_(plan_.layers.size()) {
  for (const LayerMemory& layer : layers) parameters_.emplace_back(layer.parameters);
  syncer_ = std::make_unique<Syncer>(transport, plan_, rank, std::move(layers), options_.syncer,
                                     this, traffic, refusals, peers, stacks_.get());
}

SyncClient::~SyncClient() {
  auto closed = std::make_shared<std::promise<void>>();  // outlives set_value on the loop
  transport_->post([this, closed] {
    loop_.assert_held();
    syncer_.reset();
    closed->set_value();
  });
  closed->get_future().wait();  // bounded: the loop runs all posted tasks, and none of them blocks
}

void SyncClient::start() {
  transport_->post([this] {
    loop_.assert_held();
    syncer_->start();
  });
}

void SyncClient::gradient_ready(LayerIndex layer, Iteration iteration, MicroBatch part) {
  trainer_.assert_held();
  if (part.is_last()) {
    const MutexLock lock(mutex_);
    gradient_since_[layer.value()] = std::chrono::steady_clock::now();
  }
  if (goes_by_sfb(layer)) {
    factors_ready(layer, iteration, part);
  } else {
    transport_->post([this, layer, iteration] {
      loop_.assert_held();
      syncer_->gradient_ready(layer, iteration);
    });
  }
}

// ---- layers that go by SFB ----

void SyncClient::factors_ready(LayerIndex layer, Iteration iteration, MicroBatch part) {
  const OwnFactors whole = stacks_->own(layer, iteration);
  const auto rows_of_part = [&part](std::span<float> all) {
    const std::size_t size = all.size() / static_cast<std::size_t>(part.count);
    return all.subspan(static_cast<std::size_t>(part.index) * size, size);
  };
  const OwnFactors own{.output_gradient = rows_of_part(whole.output_gradient),
                       .input = rows_of_part(whole.input)};
  TraceSpan copy{.stage = Stage::kCopy,
                 .begin = now(),
                 .iteration = iteration,
                 .layer = layer,
                 .bytes = own.output_gradient.size_bytes() + own.input.size_bytes()};
  absl::Status status = engine_->copy_factors(layer, own);
  copy.end = now();
  traffic_->node().took(copy);
  if (status.ok()) status = check_factors(layer, iteration, own);
  if (status.ok() && part.is_last()) status = publish(layer, iteration);
  if (!status.ok()) cancel(status);  // the next wait returns it
}

/// The others would refuse them; here it can be said why.
absl::Status SyncClient::check_factors(LayerIndex layer, Iteration iteration,
                                       const OwnFactors& own) const {
  const bool good_gradient = all_finite(own.output_gradient);
  if (good_gradient && all_finite(own.input)) return absl::OkStatus();
  traffic_->node().count(NodeCount::kNotFinite);
  return absl::FailedPreconditionError(absl::StrCat(
      "the ", good_gradient ? "input" : "output gradient", " of layer ",
      plan_.layers[layer.value()].name, " holds values that are no finite number in iteration ",
      iteration, " on worker ", rank_.value(),
      ": try a smaller optimizer.learning_rate, or check the data and its scale"));
}

absl::Status SyncClient::publish(LayerIndex layer, Iteration iteration) {
  std::uint64_t digest = 0;
  if (factor_options_.has_digest(iteration)) {
    if (absl::Status status = engine_->fetch_parameters(layer); !status.ok()) return status;
    digest = digest_of(parameters_[layer.value()]);
  }
  transport_->post([this, layer, iteration, digest] {
    loop_.assert_held();
    syncer_->factors_ready(layer, iteration, digest);
  });
  return absl::OkStatus();
}

/// For its next step.
bool SyncClient::has_all_factors(std::size_t l) const {
  return versions_[l] >= options_.syncer.first_iteration && complete_[l] == versions_[l] &&
         complete_[l] < factor_options_.iterations;
}

/// An SFB layer whose norms others wait for.
std::optional<LayerIndex> SyncClient::measurable() const {
  if (plan_.norm_scope != NormScope::kNetwork) return std::nullopt;
  for (std::size_t l = 0; l < versions_.size(); ++l) {
    if (has_all_factors(l) && measured_[l] < versions_[l]) {
      return LayerIndex(static_cast<std::uint32_t>(l));
    }
  }
  return std::nullopt;
}

/// An SFB layer whose next step can be made, `first` if it is one of them.
std::optional<LayerIndex> SyncClient::steppable(LayerIndex first) const {
  const auto can = [this](std::size_t l) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return has_all_factors(l) &&
           (plan_.norm_scope != NormScope::kNetwork || norms_of_ == versions_[l]);
  };
  if (can(first.value())) return first;
  for (std::size_t l = 0; l < versions_.size(); ++l) {
    if (can(l)) return LayerIndex(static_cast<std::uint32_t>(l));
  }
  return std::nullopt;
}

absl::Status SyncClient::measure(LayerIndex layer) {
  const Iteration iteration = versions_[layer.value()];
  mutex_.unlock();
  TraceSpan rebuild{
      .stage = Stage::kRebuild, .begin = now(), .iteration = iteration, .layer = layer};
  absl::StatusOr<std::vector<TensorSquares>> squares =
      engine_->measure(layer, iteration, stacks_->stacked(layer, iteration));
  rebuild.end = now();
  traffic_->node().took(rebuild);
  if (squares.ok()) {
    for (const TensorSquares& tensor : *squares) {
      if (std::isfinite(tensor.gradient) && std::isfinite(tensor.parameters)) continue;
      traffic_->node().count(NodeCount::kNotFinite);
      squares = absl::FailedPreconditionError(absl::StrCat(
          "the norm of the gradients of iteration ", iteration, " is no finite number: layer ",
          plan_.layers[layer.value()].name, " holds values that are infinite or not a number",
          ": try a smaller optimizer.learning_rate, or check the data and its scale"));
      break;
    }
  }
  const absl::Status status = squares.status();
  if (status.ok()) {
    // Copyable, for the loop's std::function.
    auto shared = std::make_shared<std::vector<TensorSquares>>(*std::move(squares));
    transport_->post([this, layer, iteration, shared] {
      loop_.assert_held();
      syncer_->layer_measured(layer, iteration, std::move(*shared));
    });
  }
  mutex_.lock();
  measured_[layer.value()] = iteration;
  return status;
}

absl::Status SyncClient::step(LayerIndex layer) {
  const Iteration iteration = versions_[layer.value()];
  const double all_gradients = all_gradients_;
  mutex_.unlock();
  absl::Status status = options_.stepping ? options_.stepping(layer, iteration) : absl::OkStatus();
  TraceSpan rebuild{
      .stage = Stage::kRebuild, .begin = now(), .iteration = iteration, .layer = layer};
  if (status.ok()) {
    status = engine_->step(layer, iteration, stacks_->stacked(layer, iteration), all_gradients);
  }
  rebuild.end = now();
  traffic_->node().took(rebuild);
  if (status.ok() && options_.stepped) status = options_.stepped(layer, iteration + 1);
  mutex_.lock();
  if (status.ok()) set_version(layer, iteration + 1);
  return status;
}

std::string SyncClient::awaited_text(LayerIndex layer) {
  std::set<std::string> names;
  if (!goes_by_sfb(layer) && is_behind_relay(plan_, rank_)) {
    const WorkerRank leader = leader_of(plan_, rank_);
    return absl::StrCat("the relay of worker ", leader.value(), " at ",
                        plan_.worker_addresses[leader.value()]);
  }
  if (!goes_by_sfb(layer)) {
    for (const PlanChunk& chunk : plan_.chunks) {
      if (chunk.layer == layer) names.insert(plan_.server_addresses[chunk.server.value()]);
    }
    return absl::StrCat("its servers ", absl::StrJoin(names, ", "));
  }
  auto answer = std::make_shared<std::promise<std::string>>();  // may come after we have left
  std::future<std::string> text = answer->get_future();
  transport_->post([this, layer, answer] {
    loop_.assert_held();
    answer->set_value(syncer_->awaited(layer));
  });
  return text.wait_for(kAwaitedPatience) == std::future_status::ready ? text.get()
                                                                      : "the other workers";
}

// ---- waiting ----

absl::Status SyncClient::wait_stepping(LayerIndex layer, Waiter waiter,
                                       const std::function<bool()>& done) {
  const auto give_up = std::chrono::steady_clock::now() + options_.wait_timeout;
  while (failure_.ok() && !done()) {
    if (const std::optional<LayerIndex> next = measurable()) {
      if (absl::Status status = measure(*next); !status.ok()) return status;
      continue;
    }
    if (const std::optional<LayerIndex> next = steppable(layer)) {
      if (absl::Status status = step(*next); !status.ok()) return status;
      continue;
    }
    TraceSpan stall{.stage = Stage::kStall,
                    .begin = now(),
                    .iteration = versions_[layer.value()] + 1,  // whose forward waits
                    .layer = layer};
    waits_for_ = layer;
    const bool in_time =
        changed_.wait_until(mutex_, give_up, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return !failure_.ok() || done() || steppable(layer) || measurable();
        });
    waits_for_.reset();
    stall.end = now();
    if (waiter == Waiter::kForward) {
      traffic_->stalled(layer, static_cast<std::uint64_t>((stall.end - stall.begin).count()));
      traffic_->node().took(stall);
    }
    if (!in_time) return absl::DeadlineExceededError("");
  }
  return failure_;
}

absl::Status SyncClient::wait(LayerIndex layer, const std::string& what, Waiter waiter,
                              const std::function<bool()>& done) {
  MutexLock lock(mutex_);
  const absl::Status status = wait_stepping(layer, waiter, done);
  if (!absl::IsDeadlineExceeded(status) || !status.message().empty()) return status;
  lock.unlock();
  return absl::DeadlineExceededError(
      absl::StrCat("layer ", plan_.layers[layer.value()].name, ": ", what, " did not come within ",
                   options_.wait_timeout.count(), " ms from ", awaited_text(layer),
                   ": check whether a process there, or another worker, makes no progress"));
}

absl::Status SyncClient::wait_parameters(LayerIndex layer, Iteration version,
                                         const ArrivingParameters& arriving) {
  trainer_.assert_held();
  return wait_version(layer, version, arriving, Waiter::kForward);
}

absl::Status SyncClient::wait_landed(LayerIndex layer, Iteration version) {
  trainer_.assert_held();
  return wait_version(layer, version, {}, Waiter::kOther);
}

absl::Status SyncClient::wait_version(LayerIndex layer, Iteration version,
                                      const ArrivingParameters& arriving, Waiter waiter) {
  std::int64_t told = 0;
  for (;;) {
    bool is_complete = false;
    std::int64_t elements = 0;
    const absl::Status status = wait(
        layer, absl::StrCat("version ", version), waiter,
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          const Arriving& parts = arriving_[layer.value()];
          is_complete = versions_[layer.value()] >= version;
          elements = parts.version == version ? parts.elements : 0;
          const bool is_enough = arriving.arrived && elements >= told + arriving.piece_elements;
          const bool is_done = is_complete || is_enough;
          // Whoever lands chunks need not wake this thread for each.
          awaits_part_of_ =
              is_done || !arriving.arrived ? std::nullopt : std::optional<LayerIndex>(layer);
          awaited_elements_ = told + arriving.piece_elements;
          return is_done;
        });
    if (!status.ok() || is_complete) return status;
    if (absl::Status taken = arriving.arrived(elements); !taken.ok()) return taken;
    told = elements;
  }
}

void SyncClient::step_rates(Iteration iteration, ProgramRates rates) {
  trainer_.assert_held();
  // Copyable, for the loop's std::function.
  auto shared = std::make_shared<ProgramRates>(std::move(rates));
  transport_->post([this, iteration, shared] {
    loop_.assert_held();
    syncer_->step_rates(iteration, std::move(*shared));
  });
}

absl::StatusOr<double> SyncClient::wait_gradient_norm(Iteration iteration) {
  trainer_.assert_held();
  POSEIDON_RETURN_IF_ERROR(
      wait(LayerIndex(0), absl::StrCat("the norm of the gradients of iteration ", iteration),
           Waiter::kOther, [this, iteration]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
             return norms_of_ >= iteration;
           }));
  const MutexLock lock(mutex_);
  return std::sqrt(all_gradients_);
}

absl::Status SyncClient::finish(Iteration iterations) {
  trainer_.assert_held();
  if (absl::Status status = wait_all_parameters(iterations); !status.ok()) return status;
  if (absl::Status status = compare_replicas(iterations); !status.ok()) return status;
  return fetch_exact_parameters();
}

absl::Status SyncClient::compare_replicas(Iteration iterations) {
  for (std::uint32_t i = 0; i < plan_.layers.size(); ++i) {
    if (!goes_by_sfb(LayerIndex(i))) continue;
    if (absl::Status status = publish(LayerIndex(i), iterations); !status.ok()) return status;
  }
  for (std::uint32_t i = 0; i < plan_.layers.size(); ++i) {
    const LayerIndex layer(i);
    if (!goes_by_sfb(layer)) continue;
    const absl::Status status = wait(layer, "the final digest", Waiter::kOther,
                                     [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                                       return complete_[layer.value()] >= iterations;
                                     });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SyncClient::fetch_exact_parameters() {
  if (plan_.wire_type == ElementType::kFloat32) return absl::OkStatus();
  transport_->post([this] {
    loop_.assert_held();
    syncer_->fetch_exact();
  });
  for (std::uint32_t i = 0; i < plan_.layers.size(); ++i) {
    const LayerIndex layer(i);
    if (goes_by_sfb(layer)) continue;  // those were never rounded
    const absl::Status status =
        wait(layer, "the exact parameters", Waiter::kOther,
             [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return exact_[layer.value()]; });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SyncClient::wait_all_parameters(Iteration version) {
  trainer_.assert_held();
  for (std::uint32_t i = 0; i < plan_.layers.size(); ++i) {
    const absl::Status status = wait_version(LayerIndex(i), version, {}, Waiter::kOther);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void SyncClient::cancel(const absl::Status& reason) {
  const MutexLock lock(mutex_);
  if (failure_.ok()) failure_ = reason;
  changed_.notify_all();
}

void SyncClient::note_awaited() {
  std::optional<LayerIndex> layer;
  {
    const MutexLock lock(mutex_);
    layer = waits_for_;
  }
  if (!layer) {
    traffic_->awaited().set({});
    return;
  }
  transport_->post([this, layer = *layer] {
    loop_.assert_held();
    traffic_->awaited().set(syncer_->awaited_data(layer));
  });
}

void SyncClient::chunk_landed(const ChunkLanded& chunk) {
  if (chunk.exact || chunk.leading_elements == 0) return;
  const MutexLock lock(mutex_);
  arriving_[chunk.layer.value()] = {chunk.version, chunk.leading_elements};
  if (awaits_part_of_ == chunk.layer && chunk.leading_elements >= awaited_elements_) {
    changed_.notify_all();
  }
}

void SyncClient::layer_landed(const LayerLanded& layer) {
  const MutexLock lock(mutex_);
  if (layer.exact) {
    exact_[layer.layer.value()] = true;
  } else {
    set_version(layer.layer, layer.version);
  }
  changed_.notify_all();
}

void SyncClient::layer_initialised(LayerIndex layer, Iteration version) {
  const MutexLock lock(mutex_);
  set_version(layer, version);
  changed_.notify_all();
}

void SyncClient::set_version(LayerIndex layer, Iteration version) {
  versions_[layer.value()] = version;
  if (const auto since = std::exchange(gradient_since_[layer.value()], std::nullopt)) {
    traffic_->synced(
        layer, std::chrono::duration_cast<Nanoseconds>(std::chrono::steady_clock::now() - *since));
  }
}

void SyncClient::norms_complete(Iteration iteration, double all_gradients) {
  const MutexLock lock(mutex_);
  norms_of_ = iteration;
  all_gradients_ = all_gradients;
  changed_.notify_all();
}

void SyncClient::factors_complete(LayerIndex layer, Iteration iteration) {
  const MutexLock lock(mutex_);
  complete_[layer.value()] = iteration;
  changed_.notify_all();
}

}  // namespace poseidon
