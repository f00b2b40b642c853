#pragma once

// The synchronisation client's streams to the other workers, on the transport's loop.
//
// Called by: sync/client/syncer.h, when a layer's own factors are in place. Calls:
// sync/routes/sfb_route.h, which decides what each stream sends; SyncerEvents, when a set of
// factors is complete.
//
// Each pair of workers has one stream, which the lower rank opens. Each side first sends HELLO, and
// nothing else until it has the other side's HELLO. When a stream breaks, the same side opens it
// again and the other waits for it. Both give up after SyncerOptions::give_up_after, with a message
// that names the other worker.
//
// Everything here runs on the transport's loop and holds no lock.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/plan.h"
#include "common/probes/traffic.h"
#include "common/transport/transport.h"
#include "sync/links/outage_log.h"
#include "sync/links/peer_stream.h"
#include "sync/links/reconnect.h"
#include "sync/links/sync_events.h"
#include "sync/routes/sfb_route.h"

namespace poseidon {

class RelayService;

/// How workers reach each other. All on the loop of the other transports; all must outlive this
/// struct's users.
struct PeerAccess {
  Transport* transport = nullptr;  ///< speaks kFactorMethod
  PeerDoor* door = nullptr;        ///< accepts other workers' streams
  Transport* relays = nullptr;     ///< speaks kLocalAggregationMethod
  RelayService* relay = nullptr;   ///< of the group, if this worker leads one
};

class FactorExchange final : public PeerStream::Owner, public PeerDoor::Host {
 public:
  /// All pointers must outlive it. `peers` may be empty with one worker.
  FactorExchange(Plan plan, WorkerRank rank, const std::vector<LayerMemory>& layers,
                 FactorStacks* stacks, PeerAccess peers, const SyncerOptions& options,
                 SyncerEvents* events, TrafficProbe* traffic, RefusalCounts* refusals);
  ~FactorExchange() override;
  FactorExchange(const FactorExchange&) = delete;
  FactorExchange& operator=(const FactorExchange&) = delete;

  /// Opens the door and connects to all higher ranks. Rank 0 provides the initial parameters.
  /// Version 0 of each SFB layer is reported when it has arrived.
  void start();

  /// See SfbRoute::factors_ready.
  void factors_ready(LayerIndex layer, Iteration iteration, std::uint64_t digest);

  /// The workers whose part of the layer's next set is missing, for error messages: "worker 2 at
  /// 10.0.0.4:4711, worker 3 at ...".
  std::string awaited(LayerIndex layer) const;
  /// The same for heartbeats; empty when no part is missing.
  std::vector<AwaitedData> awaited_data(LayerIndex layer) const;

  // Called by the door.
  absl::Status admit(const PeerStream& stream, const FactorHeader& hello,
                     std::size_t payload_bytes) override;
  void adopt(std::unique_ptr<PeerStream> stream, WorkerRank peer) override;

 private:
  struct Peer {
    WorkerRank rank;
    std::unique_ptr<PeerStream> stream;  ///< null while there is none
    bool greeted = false;                ///< its HELLO has arrived on this stream
    Reconnect reconnect;
    OutageLog outage = {};
    std::uint64_t losses = 0;  ///< streams lost so far: lets a timer see that its stream is gone
    GaugePart queue;           ///< messages that wait to be sent to it
    std::optional<TraceSpan> sending;  ///< the piece that is being written
  };

  void on_message(PeerStream& stream, const Bytes& message) override;
  void on_written(PeerStream& stream) override;
  void on_closed(PeerStream& stream, const absl::Status& status) override;

  std::string name(WorkerRank rank) const;
  void connect(Peer& peer);
  void greet(Peer& peer);
  void greeted(Peer& peer);
  void pump(Peer& peer);
  void pump_all();
  void settle(const FactorLanding& landing);
  void refuse(Peer& peer, const Objection& objection);
  void lost(Peer& peer, const absl::Status& status);
  void fail(const absl::Status& status);

  const PeerAccess peers_access_;
  const SyncerOptions options_;
  SyncerEvents* const events_;
  TrafficProbe* const traffic_;
  RefusalCounts* const refusals_;
  SfbRoute route_;
  std::vector<Nanoseconds> ready_since_;  ///< by LayerIndex: when its newest factors were ready
  std::vector<Peer> peers_;               ///< by rank; our own has no stream
  bool failed_ = false;
  /// Timers in the loop outlive this object; they check this flag before they touch it.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon
