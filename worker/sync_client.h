#pragma once

// The synchronisation client, thread side: what a trainer of any framework calls.
//
// Before: the engine's after_backward hook. After: worker/syncer.h on the transport's loop.
//
// Concurrency: gradient_ready and wait_parameters on the trainer's thread (one), cancel on any.
// start and close from whoever owns the client.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/traffic.h"
#include "worker/syncer.h"

namespace poseidon {

struct SyncClientOptions {
  SyncerOptions syncer;
  /// Longest wait for one layer. Generous: a slow worker is no error, and a dead one is found by
  /// the coordinator within its lease; this is the last resort that keeps a wait from being
  /// endless.
  Milliseconds wait_timeout{600000};
};

class SyncClient final : public SyncerEvents {
 public:
  /// `transport`, `traffic` and `refusals` must outlive the client.
  SyncClient(Transport* transport, Plan plan, WorkerRank rank, std::vector<LayerMemory> layers,
             SyncClientOptions options, TrafficProbe* traffic, RefusalCounts* refusals);
  /// Closes: after it, nothing touches the layers' memory or the probes any more. Must not run on
  /// the transport's loop.
  ~SyncClient() override;

  void start();
  void gradient_ready(LayerIndex layer, Iteration iteration);

  /// Until the layer's parameters have `version` steps in them. Errors: what broke synchronisation,
  /// CANCELLED with cancel's reason, DEADLINE_EXCEEDED naming the layer and its servers.
  absl::Status wait_parameters(LayerIndex layer, Iteration version);
  absl::Status wait_all_parameters(Iteration version);

  /// After wait_all_parameters(version) of the last version, once: until the layers' memory holds
  /// the servers' float32 parameters. What a 16-bit wire type rounded is then exact; with float32
  /// it always was, and nothing is sent. Errors as above.
  absl::Status fetch_exact_parameters(Iteration version);

  /// Wakes every wait, now and later, with this status. Any thread.
  void cancel(const absl::Status& reason);

  // From the syncer, on the loop.
  void parameters_ready(LayerIndex layer, Iteration version) override;
  void exact_parameters_ready(LayerIndex layer) override;
  void sync_failed(const absl::Status& status) override { cancel(status); }

 private:
  /// `exact`: for the version in float32.
  absl::Status wait(LayerIndex layer, Iteration version, bool exact);

  Transport* const transport_;
  const Plan plan_;
  const SyncClientOptions options_;
  TrafficProbe* const traffic_;
  std::unique_ptr<Syncer> syncer_;  ///< touched on the loop only

  std::mutex mutex_;  ///< guards all below
  std::condition_variable changed_;
  std::vector<Iteration> versions_;  ///< by LayerIndex, landed
  std::vector<bool> exact_;          ///< by LayerIndex, landed in float32 too
  absl::Status failure_;
};

}  // namespace poseidon
