#pragma once

// The synchronisation client, thread side: the interface for a trainer of any framework.
//
// Called by: worker/trainer.h, from the engine's after_backward hook and before each forward;
// sync/node/worker_job.h starts and ends it. Calls: sync/client/syncer.h on the transport's loop;
// sync/client/factor_engine.h on the trainer's thread.
//
// Servers step a layer that goes by PS; here the trainer only waits for it. The trainer's thread
// steps a layer that goes by SFB once all workers' factors have arrived: when it waits for that
// layer, or earlier, while it waits for another layer and would stand still. When steps are
// clipped, the thread first computes the norms of those layers (one product each), and steps once
// the network's norm is known.
//
// Threads: the trainer's (one) and the loop. They share what mutex_ guards and the memory of
// factors (sync/routes/factor_stacks.h). The trainer's thread touches nothing else of the loop's:
// it posts.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/probes/traffic.h"
#include "common/threads/mutex.h"
#include "common/threads/thread_roles.h"
#include "sync/client/factor_engine.h"
#include "sync/client/syncer.h"
#include "sync/routes/factor_stacks.h"

namespace poseidon {

/// The part of a batch that a gradient belongs to; by default the whole batch.
struct MicroBatch {
  std::int64_t index = 0, count = 1;
  bool is_last() const { return index + 1 == count; }
};

/// For a caller that can use the first parameters of a layer before the rest has arrived.
struct ArrivingParameters {
  /// Minimum number of new elements per call of `arrived`; > 0.
  std::int64_t piece_elements = 0;
  /// Called on the waiting thread when the layer's first `elements` elements have the awaited
  /// version. Not called for the complete layer, which ends the wait. An error ends the wait. May
  /// be empty.
  std::function<absl::Status(std::int64_t elements)> arrived;
};

struct SyncClientOptions {
  SyncerOptions syncer;
  /// Longest wait for one layer. A slow worker is no error: its test may take an hour where other
  /// workers take minutes. The coordinator finds a dead worker within its lease, and a stuck job by
  /// progress_timeout. So this limit is long and only keeps a wait from being endless.
  Milliseconds wait_timeout{std::chrono::hours(12)};
  /// Called on the trainer's thread before and after each step of an SFB layer, with the version
  /// that it has then. `stepping` may keep a copy of the old version, and `stepped` may copy the
  /// new one for a checkpoint before the forward pass uses it. May be empty. An error ends the wait
  /// in which the layer was stepped.
  std::function<absl::Status(LayerIndex, Iteration version)> stepping, stepped;
  /// Called on the loop when synchronisation has failed, for a thread that waits for something else
  /// at that time. May be empty.
  std::function<void(const absl::Status&)> failed;
};

class SyncClient final : public SyncerEvents {
 public:
  /// `transport`, `traffic` and `refusals` must outlive the client. So must `peers` and `engine`,
  /// which plans with SFB layers need (see Syncer and FactorEngine).
  SyncClient(Transport* transport, Plan plan, WorkerRank rank, std::vector<LayerMemory> layers,
             SyncClientOptions options, TrafficProbe* traffic, RefusalCounts* refusals,
             PeerAccess peers = {}, FactorEngine* engine = nullptr);
  /// Closes the streams: after it, nothing touches the layers' memory or the probes. Must not run
  /// on the transport's loop.
  ~SyncClient() override;

  // On the owner's thread; cancel and note_awaited on any.

  void start();
  /// Ends every wait, current and future, with this status.
  void cancel(const absl::Status& reason);
  /// Looks, on the loop, for what the trainer's thread waits for just now, and has TrafficProbe
  /// tell it. Any thread; never blocks.
  void note_awaited();

  // On the trainer's thread.

  /// Call after the layer's backward pass. When a batch is worked in parts, report an SFB layer
  /// after each part (its factors are stacked) and any other layer once, with the sum over all
  /// parts.
  void gradient_ready(LayerIndex layer, Iteration iteration, MicroBatch part = {});

  /// Waits until the layer's parameters have `version` steps in them; steps SFB layers meanwhile.
  /// Errors: the status that broke synchronisation; CANCELLED with cancel's reason;
  /// DEADLINE_EXCEEDED naming the layer and the nodes that did not answer. `arriving` is not used
  /// for SFB layers.
  absl::Status wait_parameters(LayerIndex layer, Iteration version,
                               const ArrivingParameters& arriving = {});
  absl::Status wait_all_parameters(Iteration version);
  /// As wait_parameters, for a caller that has nothing else to do: it is not counted as a stall of
  /// the layer.
  absl::Status wait_landed(LayerIndex layer, Iteration version);

  /// Where the plan's steps wait for a program's rates (NormScope::kProgram): those of the step
  /// that ends `iteration`, of which all gradients are reported. Worker 0's count.
  void step_rates(Iteration iteration, ProgramRates rates);
  /// Likewise: waits for the norm of the mean gradient of `iteration`, before any scaling.
  absl::StatusOr<double> wait_gradient_norm(Iteration iteration);

  /// After the last iteration: waits until all layers have all their steps, until all workers have
  /// found their copies of SFB layers equal, and until the layers' memory holds the float32
  /// parameters (a 16-bit wire type had rounded them). Keep the client until all workers have
  /// finished: another worker may still need a message that this one sent.
  absl::Status finish(Iteration iterations);

  // On the loop, from the syncer.

  void chunk_landed(const ChunkLanded& chunk) override;
  void layer_landed(const LayerLanded& layer) override;
  void layer_initialised(LayerIndex layer, Iteration version) override;
  void factors_complete(LayerIndex layer, Iteration iteration) override;
  void norms_complete(Iteration iteration, double all_gradients) override;
  void sync_failed(const absl::Status& status) override {
    cancel(status);
    if (options_.failed) options_.failed(status);
  }

 private:
  /// What waits for parameters: a forward pass (counted as a stall), or other code: before
  /// training, before a test and at the end.
  enum class Waiter { kForward, kOther };

  // On the trainer's thread.

  void factors_ready(LayerIndex layer, Iteration iteration, MicroBatch part)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_);
  absl::Status check_factors(LayerIndex layer, Iteration iteration, const OwnFactors& own) const;
  absl::Status publish(LayerIndex layer, Iteration iteration)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_);
  absl::Status wait_version(LayerIndex layer, Iteration version, const ArrivingParameters& arriving,
                            Waiter waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_);
  /// Waits until `done`, which runs under the mutex, returns true; steps SFB layers meanwhile.
  /// `what`: for the message.
  absl::Status wait(LayerIndex layer, const std::string& what, Waiter waiter,
                    const std::function<bool()>& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_);
  /// The same under the mutex; DEADLINE_EXCEEDED has no message.
  absl::Status wait_stepping(LayerIndex layer, Waiter waiter, const std::function<bool()>& done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_, mutex_);
  absl::Status compare_replicas(Iteration iterations) ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_);
  absl::Status fetch_exact_parameters() ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_);
  bool has_all_factors(std::size_t layer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<LayerIndex> measurable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<LayerIndex> steppable(LayerIndex first) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status measure(LayerIndex layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_, mutex_);
  absl::Status step(LayerIndex layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_, mutex_);
  std::string awaited_text(LayerIndex layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_);

  // On either.

  void set_version(LayerIndex layer, Iteration version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool goes_by_sfb(LayerIndex layer) const {
    return plan_.layers[layer.value()].scheme == Scheme::kSfb;
  }

  Transport* const transport_;
  const Plan plan_;
  const WorkerRank rank_;
  const SyncClientOptions options_;
  TrafficProbe* const traffic_;
  FactorEngine* const engine_ ABSL_PT_GUARDED_BY(trainer_);
  const SfbOptions factor_options_;
  /// Null when the plan has no SFB layers. Shared with the syncer; factor_stacks.h says which
  /// thread may use what when.
  const std::unique_ptr<FactorStacks> stacks_;
  std::vector<std::span<const float>> parameters_;  ///< by LayerIndex
  LoopRole loop_;
  LoopRole trainer_;  ///< the trainer's thread: one caller at a time
  std::unique_ptr<Syncer> syncer_ ABSL_GUARDED_BY(loop_);

  Mutex mutex_;
  CondVar changed_;
  std::vector<Iteration> versions_ ABSL_GUARDED_BY(mutex_);  ///< by LayerIndex, landed or stepped
  struct Arriving {
    Iteration version = -1;
    std::int64_t elements = 0;
  };
  std::vector<Arriving> arriving_ ABSL_GUARDED_BY(mutex_);  ///< by LayerIndex: of the next version
  /// The layer whose parts a thread waits for; the thread is woken once awaited_elements_ have
  /// landed.
  std::optional<LayerIndex> awaits_part_of_ ABSL_GUARDED_BY(mutex_);
  std::int64_t awaited_elements_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Iteration> complete_
      ABSL_GUARDED_BY(mutex_);  ///< by LayerIndex, SFB: newest iteration with all factors here
  std::vector<Iteration> measured_
      ABSL_GUARDED_BY(mutex_);  ///< by LayerIndex, SFB: newest whose squares were taken
  Iteration norms_of_ ABSL_GUARDED_BY(mutex_) =
      -1;  ///< newest iteration whose network norm has arrived
  double all_gradients_ ABSL_GUARDED_BY(mutex_) = 0.0;  ///< sum of squares of norms_of_
  std::vector<bool> exact_ ABSL_GUARDED_BY(mutex_);  ///< by LayerIndex, PS: landed in float32 too
  /// By LayerIndex: when its last gradient was ready; unset once its parameters are there.
  std::vector<std::optional<std::chrono::steady_clock::time_point>> gradient_since_
      ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  /// The layer that the trainer's thread waits for; unset while it computes.
  std::optional<LayerIndex> waits_for_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace poseidon
