#pragma once

// The synchronisation client, event side: streams to all servers, or to the relay of this worker's
// group, and, where layers go by SFB, to the other workers, on the transport's loop.
//
// Before: sync/client/sync_client.h posts gradient_ready or factors_ready from the trainer's
// thread. After: sync/links/chunk_links.h and sync/client/factor_exchange.h send what sync/routes
// decide, and report to SyncerEvents what has landed.
//
// Knows tensors and layer names, not the engine: other frameworks use it as it is. Everything here
// runs on the transport's loop and holds no lock.

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
  /// `transport`, `events`, `traffic` and `refusals` must outlive the syncer. `peers`: for plans
  /// with SFB layers and more than one worker, and for those with leaders; on the same loop as
  /// `transport`. `stacks`, which must outlive it too: for plans with SFB layers.
  Syncer(Transport* transport, Plan plan, WorkerRank rank, std::vector<LayerMemory> layers,
         SyncerOptions options, SyncerEvents* events, TrafficProbe* traffic,
         RefusalCounts* refusals, PeerAccess peers = {}, FactorStacks* stacks = nullptr);
  ~Syncer();
  Syncer(const Syncer&) = delete;
  Syncer& operator=(const Syncer&) = delete;

  /// Connects to all servers that own chunks, or to the relay, which it begins where this worker
  /// leads; and to the other workers where layers go by SFB.
  /// Worker 0 gives the initial parameters, the others get them (from a checkpoint on, all get
  /// them); either way the first version of every layer is reported when it is there.
  void start();

  /// A PS layer: the gradient of `iteration` is complete and stays unchanged until its version has
  /// landed.
  void gradient_ready(LayerIndex layer, Iteration iteration) {
    links_.gradient_ready(layer, iteration);
  }

  /// A layer that goes by SFB; see SfbRoute::factors_ready.
  void factors_ready(LayerIndex layer, Iteration iteration, std::uint64_t digest) {
    factors_->factors_ready(layer, iteration, digest);
  }

  /// A layer that goes by SFB, where the plan's steps need the network's norm: its tensors'
  /// squares.
  void layer_measured(LayerIndex layer, Iteration iteration, std::vector<TensorSquares> tensors) {
    links_.layer_measured(layer, iteration, std::move(tensors));
  }

  /// With a 16-bit wire type: replaces the rounded parameters by the servers' own, which is what a
  /// model file should hold. Once, when the last version of every layer has landed.
  void fetch_exact() { links_.fetch_exact(); }

  /// Of a layer that goes by SFB; see FactorExchange::awaited.
  std::string awaited(LayerIndex layer) const { return factors_->awaited(layer); }

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
