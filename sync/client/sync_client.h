#pragma once

// The synchronisation client, thread side: what a trainer of any framework calls.
//
// Before: the engine's after_backward hook. After: sync/client/syncer.h on the transport's loop.
//
// A layer that goes by PS is stepped by its servers, and waiting for it is all there is to do here.
// One that goes by SFB is stepped on the trainer's thread, once all workers' factors are here: when
// it is waited for, or earlier, while some other layer is waited for and the thread would stand
// still. Where steps are clipped, the thread first takes the norms of those layers (a product of
// its own), and steps when the network's norm is known.
//
// Threads: the trainer's (one) and the loop, which share what mutex_ guards and the memory of
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

/// Which part of its batch a gradient is of; all of it by default.
struct MicroBatch {
  std::int64_t index = 0, count = 1;
  bool is_last() const { return index + 1 == count; }
};

/// For who can use the first parameters of a layer before the others are there.
struct ArrivingParameters {
  /// So many elements further, at least, each time; > 0.
  std::int64_t piece_elements = 0;
  /// Called on the waiting thread: the layer's first `elements` have the version that is waited
  /// for. Not of all of them: then the wait ends. An error ends the wait. May be empty.
  std::function<absl::Status(std::int64_t elements)> arrived;
};

struct SyncClientOptions {
  SyncerOptions syncer;
  /// Longest wait for one layer. Generous: a slow worker is no error (it may have a test of an hour
  /// to do that others have done in minutes), a dead one is found by the coordinator within its
  /// lease, and a job in which nothing moves by its progress_timeout. This is the last resort that
  /// keeps a wait from being endless.
  Milliseconds wait_timeout{std::chrono::hours(12)};
  /// Called on the trainer's thread before and after each step of an SFB layer, with the version
  /// that it has then: the places to keep the old version, and to copy the new one for a
  /// checkpoint before anybody uses it. May be empty.
  /// An error ends the wait in which the layer was stepped.
  std::function<absl::Status(LayerIndex, Iteration version)> stepping, stepped;
  /// Called on the loop when synchronisation cannot go on: for who waits for something else just
  /// then. May be empty.
  std::function<void(const absl::Status&)> failed;
};

class SyncClient final : public SyncerEvents {
 public:
  /// `transport`, `traffic` and `refusals` must outlive the client. `peers` and `engine`, which
  /// must too: for plans with SFB layers (see Syncer and FactorEngine).
  SyncClient(Transport* transport, Plan plan, WorkerRank rank, std::vector<LayerMemory> layers,
             SyncClientOptions options, TrafficProbe* traffic, RefusalCounts* refusals,
             PeerAccess peers = {}, FactorEngine* engine = nullptr);
  /// Closes: after it, nothing touches the layers' memory or the probes any more. Must not run on
  /// the transport's loop.
  ~SyncClient() override;

  // On the owner's thread; cancel on any.

  void start();
  /// Wakes every wait, now and later, with this status.
  void cancel(const absl::Status& reason);

  // On the trainer's thread.

  /// After the layer's backward. Where a batch is worked in parts, a layer that goes by SFB is
  /// reported after each (its factors are stacked), any other once, with the sum over all.
  void gradient_ready(LayerIndex layer, Iteration iteration, MicroBatch part = {});

  /// Until the layer's parameters have `version` steps in them; steps SFB layers meanwhile. Errors:
  /// what broke synchronisation, CANCELLED with cancel's reason, DEADLINE_EXCEEDED naming the layer
  /// and who did not answer. Of layers that go by SFB nothing arrives before the rest.
  absl::Status wait_parameters(LayerIndex layer, Iteration version,
                               const ArrivingParameters& arriving = {});
  absl::Status wait_all_parameters(Iteration version);

  /// After the last iteration: until all layers have all their steps, all workers have found their
  /// copies of SFB layers equal, and the layers' memory holds the float32 parameters that a 16-bit
  /// wire type had rounded. Keep the client until all workers have come so far: another may still
  /// need what this one sent.
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
  /// What waits for parameters: a forward pass, which stands still (a stall), or whoever lies
  /// between the passes, before training, before a test and at the end.
  enum class Waiter { kForward, kOther };

  // On the trainer's thread.

  void factors_ready(LayerIndex layer, Iteration iteration, MicroBatch part)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_);
  absl::Status check_factors(LayerIndex layer, Iteration iteration, const OwnFactors& own) const;
  absl::Status publish(LayerIndex layer, Iteration iteration)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_);
  absl::Status wait_version(LayerIndex layer, Iteration version, const ArrivingParameters& arriving,
                            Waiter waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_);
  /// Until `done`, which runs under the mutex; steps what can be stepped. `what`: for the message.
  absl::Status wait(LayerIndex layer, const std::string& what, Waiter waiter,
                    const std::function<bool()>& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_);
  /// As wait, under the mutex; DEADLINE_EXCEEDED without words.
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
  /// Null when the plan has no SFB layers. The syncer uses it too; factor_stacks.h says when which.
  const std::unique_ptr<FactorStacks> stacks_;
  std::vector<std::span<const float>> parameters_;  ///< by LayerIndex
  LoopRole loop_;
  LoopRole trainer_;  ///< the thread of the trainer, which calls as a loop does
  std::unique_ptr<Syncer> syncer_ ABSL_GUARDED_BY(loop_);

  Mutex mutex_;
  CondVar changed_;
  std::vector<Iteration> versions_ ABSL_GUARDED_BY(mutex_);  ///< by LayerIndex, landed or stepped
  struct Arriving {
    Iteration version = -1;
    std::int64_t elements = 0;
  };
  std::vector<Arriving> arriving_ ABSL_GUARDED_BY(mutex_);  ///< by LayerIndex: of the next version
  /// Whoever waits for parts of a layer: it is worth waking beyond so many elements.
  std::optional<LayerIndex> awaits_part_of_ ABSL_GUARDED_BY(mutex_);
  std::int64_t awaited_elements_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Iteration> complete_
      ABSL_GUARDED_BY(mutex_);  ///< by LayerIndex, SFB: newest iteration with all factors here
  std::vector<Iteration> measured_
      ABSL_GUARDED_BY(mutex_);  ///< by LayerIndex, SFB: newest whose squares were taken
  Iteration norms_of_ ABSL_GUARDED_BY(mutex_) =
      -1;  ///< newest iteration of which the network's squares are here
  double all_gradients_ ABSL_GUARDED_BY(mutex_) = 0.0;  ///< those
  std::vector<bool> exact_ ABSL_GUARDED_BY(mutex_);  ///< by LayerIndex, PS: landed in float32 too
  /// By LayerIndex: when its last gradient was ready; unset once its parameters are there.
  std::vector<std::optional<std::chrono::steady_clock::time_point>> gradient_since_
      ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace poseidon
