#pragma once

// The synchronisation client, event side: streams to all servers, on the transport's loop.
//
// Before: worker/sync_client.h posts gradient_ready from the trainer's thread. After: worker/routes
// decide what each stream sends; landed layers are reported to SyncerEvents.
//
// Knows tensors and layer names, not the engine: other frameworks use it as it is. Everything here
// runs on the transport's loop and holds no lock.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan.h"
#include "common/traffic.h"
#include "common/transport.h"
#include "common/wire.h"
#include "worker/routes/ps_route.h"

namespace poseidon {

/// On the loop.
class SyncerEvents {
 public:
  virtual ~SyncerEvents() = default;
  /// The layer's parameters are those of `version` (how many optimizer steps are in them).
  virtual void parameters_ready(LayerIndex layer, Iteration version) = 0;
  /// After fetch_exact: the layer's parameters are the server's, in float32.
  virtual void exact_parameters_ready(LayerIndex layer) = 0;
  /// Synchronisation cannot go on; last event. The message names the server and the remedy.
  virtual void sync_failed(const absl::Status& status) = 0;
};

struct SyncerOptions {
  Nanoseconds reconnect_min{Milliseconds(50)};  ///< first pause after a cut; doubles
  Nanoseconds reconnect_max{Milliseconds(2000)};
  /// A server that cannot be reached for so long fails the run.
  Nanoseconds give_up_after{Milliseconds(30000)};
};

class Syncer {
 public:
  /// `transport`, `events`, `traffic` and `refusals` must outlive the syncer.
  Syncer(Transport* transport, Plan plan, WorkerRank rank, std::vector<LayerMemory> layers,
         SyncerOptions options, SyncerEvents* events, TrafficProbe* traffic,
         RefusalCounts* refusals);
  ~Syncer();
  Syncer(const Syncer&) = delete;
  Syncer& operator=(const Syncer&) = delete;

  /// Connects to all servers. Worker 0 gives the initial parameters, the others ask for them;
  /// either way version 0 of every layer is reported when it is there.
  void start();

  /// The gradient of `iteration` is complete and stays unchanged until its version has landed.
  void gradient_ready(LayerIndex layer, Iteration iteration);

  /// With a 16-bit wire type: replaces the rounded parameters by the servers' own, which is what a
  /// model file should hold. Once, when the last version of every layer has landed.
  void fetch_exact();

 private:
  class Connection;

  void connect(Connection& connection);
  void pump(Connection& connection);
  void on_message(Connection& connection, const Bytes& message);
  void on_closed(Connection& connection, const absl::Status& status);
  void fail(const absl::Status& status);

  Transport* const transport_;
  const WorkerRank rank_;
  const SyncerOptions options_;
  SyncerEvents* const events_;
  TrafficProbe* const traffic_;
  RefusalCounts* const refusals_;
  PsRoute route_;
  std::vector<std::unique_ptr<Connection>> connections_;  ///< by ServerIndex
  bool failed_ = false;
  /// Timers outlive us in the loop; they look here before they touch us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon
