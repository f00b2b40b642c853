#pragma once

// One assignment of a simulated worker: what sync/node/worker_job.cc does on a thread of its own,
// with worker/trainer.cc and sync/client/sync_client.cc, as a state machine on the loop. Part of
// sim_worker.cc and sim_job.cc; no other file includes this.

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/checkpoint/restore_source.h"
#include "common/memory/aligned_buffer.h"
#include "common/node/job_reports.h"
#include "common/plan/plan_proto.h"
#include "common/probes/traffic.h"
#include "common/tensor/scan.h"
#include "models/net/net.h"
#include "sync/states/checkpoint_giver.h"
#include "sync/states/state_sender.h"
#include "tests/sim/sim_worker.h"
#include "tests/support/plain_factor_state.h"

namespace poseidon::sim {

inline constexpr Nanoseconds kSlowestPreparation{Milliseconds(300)};

class SimWorker::Job final : public SyncerEvents {
 public:
  Job(SimWorker* node, const v1::Assignment& assignment, std::uint64_t seed)
      : node_(*node), assignment_(assignment), random_(seed), epoch_(assignment.plan().epoch()) {
    after(kSlowestPreparation, [this] { end_unless_ok(prepare()); });
  }
  ~Job() override {
    *alive_ = false;
    close_client();
    close_giver();
  }

  Epoch epoch() const { return epoch_; }

  void start() {
    started_ = true;
    advance();
  }
  /// Another worker is lost: training ends, but what it has made stays.
  void halt() {
    if (halting_) return;
    halting_ = true;
    transfer_.reset();
    if (state_ == State::kFailed) {
      hold();
    } else {
      advance();
    }
  }
  void save_checkpoint(const v1::SaveCheckpoint& save) {
    if (save.held()) {
      held_save_ = save;
      if (state_ == State::kHolding) give_held();
    } else if (giver_ != nullptr) {
      giver_->save_at(static_cast<Iteration>(save.iteration()));
    }
  }

  const TrafficProbe* traffic() const { return traffic_.get(); }
  /// As SyncClient::note_awaited.
  void note_awaited() {
    const std::optional<LayerIndex> layer = syncer_ == nullptr ? std::nullopt : awaited_layer();
    traffic_->awaited().set(layer ? syncer_->awaited_data(*layer) : std::vector<AwaitedData>());
  }

  // ---- from the syncer ----

  void layer_landed(const LayerLanded& layer) override {
    if (layer.exact) {
      exact_[layer.layer.value()] = true;
    } else {
      set_version(layer.layer, layer.version);
    }
    advance();
  }
  void layer_initialised(LayerIndex layer, Iteration version) override {
    set_version(layer, version);
    advance();
  }
  void factors_complete(LayerIndex layer, Iteration iteration) override {
    if (iteration != complete_[layer.value()] + 1) fail("a set was skipped or repeated");
    complete_[layer.value()] = iteration;
    advance();
  }
  void norms_complete(Iteration iteration, double all_gradients) override {
    norms_of_ = iteration;
    all_gradients_ = all_gradients;
    advance();
  }
  void sync_failed(const absl::Status& status) override {
    if (sync_failure_.ok()) sync_failure_ = status;
    advance();
  }

 private:
  enum class State {
    kPreparing,  ///< engine, checkpoint
    kWaiting,    ///< for the first parameters
    kReady,      ///< for Start
    kForward,
    kComputing,
    kBeforeBackward,  ///< for the servers to hold what worker 0 alone has
    kFinishing,       ///< for the last parameters
    kComparing,       ///< for the last digests
    kExact,           ///< for the exact parameters
    kUploading,
    kFinished,  ///< for the end of the job
    kHolding,
    kFailed  ///< what it has made stays here too
  };

  void fail(const std::string& what) {
    node_.truth_->fail(absl::StrCat("worker at ", node_.options_.address, ", rank ", rank_.value(),
                                    ", epoch ", epoch_.value(), ", iteration ", iteration_, ": ",
                                    what));
  }
  void after(Nanoseconds longest, std::function<void()> function) {
    const auto range = static_cast<std::uint64_t>(longest.count());
    node_.transport_->post_after(Nanoseconds(static_cast<std::int64_t>(random_.below(range + 1))),
                                 [alive = alive_, function = std::move(function)] {
                                   if (*alive) function();
                                 });
  }

  // ---- preparing (sim_job.cc) ----

  absl::Status prepare();
  absl::Status fetch_own_state(int slots);
  absl::Status prepare_synchronisation();

  // ---- waiting, as sync_client.cc does ----

  void set_version(LayerIndex layer, Iteration version) {
    if (version != versions_[layer.value()] + 1) fail("a version was skipped or repeated");
    versions_[layer.value()] = version;
  }

  bool by_factors(std::size_t l) const { return plan_.layers[l].scheme == Scheme::kSfb; }
  bool has_all_factors(std::size_t l) const {
    return by_factors(l) && versions_[l] >= first_ && complete_[l] == versions_[l] &&
           complete_[l] < job_.iterations;
  }

  /// Steps what can be stepped.
  void step_layers() {
    const bool clips = plan_.norm_scope == NormScope::kNetwork;
    for (std::size_t l = 0; l < versions_.size(); ++l) {
      if (!has_all_factors(l)) continue;
      const SimLayer& layer = course_->scenario().layers[l];
      const LayerIndex index(static_cast<std::uint32_t>(l));
      const Iteration version = versions_[l];
      const std::vector<float> gradient = gradient_of(layer, stacks_->stacked(index, version));
      const std::vector<TensorSquares> squares =
          squares_of(course_->scenario(), layer, gradient, parameters_[l].floats());
      if (clips && measured_[l] < version) {
        measured_[l] = version;
        node_.transport_->post([this, alive = alive_, index, version, squares] {
          if (*alive && syncer_ != nullptr) syncer_->layer_measured(index, version, squares);
        });
      }
      if (clips && norms_of_ != version) continue;
      POSEIDON_CHECK(giver_->keep(index, version).ok(), "plain memory");
      step_layer(course_->scenario(), layer, version, gradient, squares, all_gradients_,
                 parameters_[l].floats(), state0_[l].floats(), state1_[l].floats());
      POSEIDON_CHECK(giver_->layer_at(index, version + 1).ok(), "plain memory");
      ++versions_[l];
    }
  }

  bool all_have(Iteration version) const {
    return std::all_of(versions_.begin(), versions_.end(),
                       [version](Iteration v) { return v >= version; });
  }

  /// Goes on as far as it can. Whatever may end a wait calls it.
  void advance() {
    if (in_advance_) return;
    in_advance_ = true;
    while (advance_once()) {
    }
    in_advance_ = false;
  }

  bool advance_once() {
    if (state_ == State::kComputing || state_ == State::kUploading || state_ == State::kHolding ||
        state_ == State::kFailed) {
      return false;
    }
    if (halting_) {
      hold();
      return false;
    }
    if (state_ == State::kPreparing || state_ == State::kFinished) return false;
    if (!sync_failure_.ok()) {
      end(sync_failure_);
      return false;
    }
    step_layers();
    switch (state_) {
      case State::kWaiting: {
        if (!all_have(first_)) return false;
        if (states_ != nullptr) {
          if (!std::exchange(gave_first_state_, true)) save_own_state(first_);
          if (!state_is_held(first_)) return false;
        }
        node_.control_.send(ready_message(epoch_));
        state_ = State::kReady;
        return true;
      }
      case State::kReady:
        if (!started_) return false;
        if (first_ >= job_.iterations) {
          state_ = State::kFinishing;
          return true;
        }
        testing_ = first_ > 0 && test_is_due(first_);
        begin_forward();
        return true;
      case State::kForward:
        return forward();
      case State::kBeforeBackward:
        if (states_ != nullptr && !state_is_held(iteration_)) return false;
        backward();
        return true;
      case State::kFinishing:
        if (!all_have(job_.iterations)) return false;
        for (std::size_t l = 0; l < versions_.size(); ++l) {
          if (by_factors(l)) publish(l, job_.iterations);
        }
        state_ = State::kComparing;
        return true;
      case State::kComparing:
        for (std::size_t l = 0; l < versions_.size(); ++l) {
          if (by_factors(l) && complete_[l] < job_.iterations) return false;
        }
        if (plan_.wire_type != ElementType::kFloat32) syncer_->fetch_exact();
        state_ = State::kExact;
        return true;
      case State::kExact:
        return finish_training();
      default:
        return false;
    }
  }

  /// The layer that it waits for; unset while it computes.
  std::optional<LayerIndex> awaited_layer() const {
    for (std::uint32_t l = 0; l < versions_.size(); ++l) {
      const bool lacks = [&] {
        switch (state_) {
          case State::kWaiting:
            return versions_[l] < first_;
          case State::kForward:
            return l == layer_ && versions_[l] < iteration_;
          case State::kFinishing:
            return versions_[l] < job_.iterations;
          case State::kComparing:
            return by_factors(l) && complete_[l] < job_.iterations;
          case State::kExact:
            return !by_factors(l) && plan_.wire_type != ElementType::kFloat32 && !exact_[l];
          default:
            return false;
        }
      }();
      if (lacks) return LayerIndex(l);
    }
    return std::nullopt;
  }

  // ---- training ----

  bool test_is_due(Iteration steps) const {
    if (!job_.data.test) return false;
    if (steps == job_.iterations) return true;
    return job_.test_every_iterations > 0 && steps % job_.test_every_iterations == 0;
  }

  void begin_forward() {
    layer_ = 0;
    state_ = State::kForward;
  }

  /// One layer. Whether there is more to do at once.
  bool forward() {
    if (versions_[layer_] < iteration_) return false;
    if (!std::ranges::equal(parameters_[layer_].floats(), course_->at(iteration_).read[layer_])) {
      fail(absl::StrCat("layer ", plan_.layers[layer_].name,
                        " read other parameters than a single process has"));
    }
    ++layer_;
    compute([this] { forward_done(); });
    return false;
  }

  void forward_done() {
    if (layer_ < parameters_.size()) {
      state_ = State::kForward;
    } else if (testing_) {
      testing_ = false;
      report_test(iteration_);
      begin_forward();
    } else {
      state_ = State::kBeforeBackward;
    }
    advance();
  }

  bool state_is_held(Iteration version) {
    const absl::StatusOr<bool> held = states_->holds(version);
    if (!held.ok()) end(held.status());
    return held.ok() && *held;
  }

  void compute(std::function<void()> then) {
    state_ = State::kComputing;
    after(node_.options_.max_compute, std::move(then));
  }

  void publish(std::size_t l, Iteration iteration) {
    const LayerIndex layer(static_cast<std::uint32_t>(l));
    const bool with_digest = factor_options_.has_digest(iteration);
    syncer_->factors_ready(layer, iteration, with_digest ? digest_of(parameters_[l].floats()) : 0);
  }

  /// One layer; nothing waits here, so a halt is met by the next forward.
  void backward() {
    --layer_;
    const std::span<const float> read = parameters_[layer_].floats();
    const LayerIndex layer(static_cast<std::uint32_t>(layer_));
    if (by_factors(layer_)) {
      const OwnFactors own = stacks_->own(layer, iteration_);
      fill_factors(rank_.value(), iteration_, read, own.output_gradient, own.input);
      publish(layer_, iteration_);
    } else {
      for (std::size_t e = 0; e < read.size(); ++e) {
        gradients_[layer_].floats()[e] = gradient_value(rank_.value(), iteration_, read[e], e);
      }
      syncer_->gradient_ready(layer, iteration_);
    }
    if (layer_ > 0) {
      compute([this] { backward(); });
      return;
    }
    iteration_done();
  }

  void iteration_done() {
    if (rank_ == WorkerRank(0)) {
      update_statistics(iteration_, course_->at(iteration_).read[0][0], statistics_);
    }
    save_own_state(iteration_ + 1);
    node_.control_.send(iteration_message(
        epoch_, iteration_, loss_of(rank_.value(), iteration_, course_->at(iteration_).read)));
    ++iteration_;
    if (iteration_ < job_.iterations) {
      testing_ = test_is_due(iteration_);
      begin_forward();
    } else {
      state_ = State::kFinishing;
    }
    advance();
  }

  void report_test(Iteration steps) {
    const double loss_sum = test_loss_of(rank_.value(), course_->at(steps).read);
    node_.control_.send(test_message(epoch_, steps, loss_sum, /*correct=*/1, /*samples=*/1));
  }

  bool finish_training() {
    if (plan_.wire_type != ElementType::kFloat32) {
      for (std::size_t l = 0; l < versions_.size(); ++l) {
        if (!by_factors(l) && !exact_[l]) return false;
      }
    }
    for (std::size_t l = 0; l < versions_.size(); ++l) {
      if (!std::ranges::equal(parameters_[l].floats(),
                              course_->at(job_.iterations).state.parameters[l])) {
        fail(absl::StrCat("layer ", plan_.layers[l].name, " ended with other parameters"));
      }
    }
    if (test_is_due(job_.iterations)) report_test(job_.iterations);
    if (rank_ != WorkerRank(0)) {
      finished();
      return false;
    }
    std::vector<std::span<const float>> layers;
    for (FloatBuffer& layer : parameters_) layers.emplace_back(layer.floats());
    state_ = State::kUploading;
    node_.control_.upload(epoch_.value(), encode_model(job_, layers, statistics_),
                          [this, alive = alive_](const absl::Status& status) {
                            if (!*alive) return;
                            if (halting_) {
                              hold();
                            } else if (status.ok()) {
                              finished();
                            } else {
                              end(status);
                            }
                          });
    return false;
  }

  // ---- the end ----

  void close_client() {
    syncer_.reset();
    stacks_.reset();
    traffic_.reset();
  }
  void close_giver() {
    transfer_.reset();
    node_.stores_.at_once = true;
    giver_.reset();
    states_.reset();
    node_.stores_.at_once = false;
  }

  void finished() {
    node_.control_.send(finished_message(epoch_));
    state_ = State::kFinished;
  }

  void end_unless_ok(const absl::Status& status) {
    if (!status.ok()) end(status);
  }

  /// Not within an event of what it closes.
  void end(const absl::Status& status) {
    if (halting_) {
      hold();
      return;
    }
    state_ = State::kFailed;
    node_.transport_->post([this, alive = alive_, status] {
      if (!*alive) return;
      close_client();
      node_.control_.send(failed_message(epoch_, status, restoring_));
    });
  }

  void hold() {
    if (state_ == State::kHolding) return;
    state_ = State::kHolding;
    node_.transport_->post([this, alive = alive_] {
      if (!*alive) return;
      close_client();
      CheckpointGiver::Held held{.oldest = 1, .newest = 0};
      if (giver_ != nullptr) held = giver_->held();
      node_.control_.send(halted_message(epoch_, held.oldest, held.newest));
      if (held_save_) give_held();
    });
  }

  void give_held() {
    const auto version = static_cast<Iteration>(held_save_->iteration());
    std::set<WorkerRank> lost;
    for (const std::uint32_t rank : held_save_->lost_ranks()) lost.insert(WorkerRank(rank));
    const absl::Status given = giver_ == nullptr
                                   ? absl::FailedPreconditionError("this worker holds nothing")
                                   : giver_->give_held(version, lost);
    if (!given.ok()) {
      report_checkpoint_failure(version, std::string(given.message()), MissingPart::kFailed);
    }
  }

  void save_own_state(Iteration version) {
    const bool due = giver_->wants_own_state(version);
    if (rank_ != WorkerRank(0)) return;
    if (states_ != nullptr) states_->send(version, statistics_);
    if (due) giver_->own_state_at(version, statistics_);
  }

  void report_checkpoint_failure(Iteration version, const std::string& reason, MissingPart why) {
    node_.control_.send(checkpoint_missing_message(epoch_, version, reason, why));
  }

  SimWorker& node_;
  const v1::Assignment assignment_;
  SplitMix64 random_;
  const Epoch epoch_;
  State state_ = State::kPreparing;
  bool started_ = false, halting_ = false, restoring_ = false, testing_ = false;
  bool in_advance_ = false;
  Plan plan_;
  JobSpec job_;
  WorkerRank rank_;
  std::optional<RestoreSource> restore_;
  std::shared_ptr<const Course> course_;
  Iteration first_ = 0;
  Iteration iteration_ = 0;
  std::size_t layer_ = 0;
  std::vector<FloatBuffer> parameters_, gradients_, state0_, state1_;
  std::vector<Iteration> versions_, complete_, measured_;
  std::vector<bool> exact_;
  std::vector<float> statistics_;
  bool gave_first_state_ = false;
  Iteration norms_of_ = -1;
  double all_gradients_ = 0.0;
  absl::Status sync_failure_;
  std::optional<v1::SaveCheckpoint> held_save_;
  std::unique_ptr<StoreTransfer> transfer_;
  std::unique_ptr<TrafficProbe> traffic_;
  std::unique_ptr<testing_support::PlainFactorState> factor_state_;
  std::unique_ptr<CheckpointGiver> giver_;
  std::unique_ptr<StateSender> states_;  ///< of worker 0, where there are statistics
  SfbOptions factor_options_;
  std::unique_ptr<FactorStacks> stacks_;
  std::unique_ptr<Syncer> syncer_;
  /// Timers outlive us in the loop; they look here before they touch us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon::sim
