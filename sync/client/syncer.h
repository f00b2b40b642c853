#pragma once

// The synchronisation client, event side: the streams to all servers or to the relay of this
// worker's group and, for layers that go by SFB, to the other workers.
//
// Called by: sync/client/sync_client.h, which posts gradient_ready and factors_ready from the
// trainer's thread. Calls: sync/links/chunk_links.h and sync/client/factor_exchange.h, which send
// what the routes (sync/routes) decide and report to SyncerEvents what has landed.
//
// It knows tensors and layer names, not the engine; other frameworks use it unchanged. Everything
// here runs on the transport's loop and holds no lock.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/plan.h"
#include "common/probes/traffic.h"
#include "common/transport/transport.h"
#include "common/wire/wire.h"
#include "sync/client/factor_exchange.h"
#include "sync/links/chunk_links.h"
#include "sync/links/sync_events.h"
#include "sync/routes/ps_route.h"

namespace poseidon {

class Syncer final {
 public:
  /// `transport`, `events`, `traffic` and `refusals` must outlive the syncer. `peers`, on the same
  /// loop as `transport`: for plans with SFB layers and more than one worker, and for plans with
  /// leaders. `stacks`, which must outlive it too: for plans with SFB layers.
  Syncer(Transport* transport, Plan plan, WorkerRank rank, std::vector<LayerMemory> layers,
         SyncerOptions options, SyncerEvents* events, TrafficProbe* traffic,
         RefusalCounts* refusals, PeerAccess peers = {}, FactorStacks* stacks = nullptr);
  ~Syncer();
  Syncer(const Syncer&) = delete;
  Syncer& operator=(const Syncer&) = delete;

  /// Connects to all servers that own chunks, or to the relay (which it begins if this worker
  /// leads), and, for SFB layers, to the other workers. Worker 0 sends the initial parameters and
  /// the others receive them; in a run from a checkpoint all workers receive them. Either way the
  /// first version of each layer is reported when it has arrived.
  void start();

  /// The gradient of a PS layer for `iteration` is complete. It must not change until the layer's
  /// next version has landed.
  void gradient_ready(LayerIndex layer, Iteration iteration) {
    links_.gradient_ready(layer, iteration);
  }

  /// For an SFB layer; see SfbRoute::factors_ready.
  void factors_ready(LayerIndex layer, Iteration iteration, std::uint64_t digest) {
    factors_->factors_ready(layer, iteration, digest);
  }

  /// The sums of squares of an SFB layer's tensors, when the plan's steps need the network's norm.
  void layer_measured(LayerIndex layer, Iteration iteration, std::vector<TensorSquares> tensors) {
    links_.layer_measured(layer, iteration, std::move(tensors));
  }

  /// Where the plan's steps wait for a program's rates; see PsRoute::step_rates.
  void step_rates(Iteration iteration, ProgramRates rates) {
    links_.step_rates(iteration, std::move(rates));
  }

  /// With a 16-bit wire type: replaces the rounded parameters by the servers' float32 parameters,
  /// which belong into a model file. Call once, when the last version of every layer has landed.
  void fetch_exact() { links_.fetch_exact(); }

  /// For an SFB layer; see FactorExchange::awaited.
  std::string awaited(LayerIndex layer) const { return factors_->awaited(layer); }
  /// What this worker, whose trainer waits for the layer, lacks, and, if it leads a group, what its
  /// relay lacks; for heartbeats. Never empty: the layer alone, where nothing known is missing.
  std::vector<AwaitedData> awaited_data(LayerIndex layer) const;

 private:
  Transport* const transport_;
  const Plan plan_;
  const WorkerRank rank_;
  const SyncerOptions options_;
  SyncerEvents* const events_;
  TrafficProbe* const traffic_;
  const PeerAccess peers_;
  const std::unique_ptr<FactorExchange> factors_;  ///< null when the plan has no SFB layers
  ChunkLinks links_;
};

}  // namespace poseidon
