#pragma once

// The synchronisation client's streams to the other workers, on the transport's loop.
//
// Before: sync/client/syncer.h hears that a layer's own factors are in place. After:
// sync/routes/sfb_route decides what each stream sends; complete sets are reported to
// SyncerEvents.
//
// Each pair of workers has one stream, opened by the lower rank. Either side's first message is
// HELLO; nothing else is sent before the other side's has come. A stream that breaks is opened
// again, by the same side; the other waits for it. Both give up after SyncerOptions::give_up_after
// and say on whom.
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

/// How a worker reaches the others and is reached, on the loop of the rest. All outlive whoever has
/// it.
struct PeerAccess {
  Transport* transport = nullptr;  ///< speaks kFactorMethod
  PeerDoor* door = nullptr;        ///< where others' streams come in
  Transport* relays = nullptr;     ///< speaks kLocalAggregationMethod
  RelayService* relay = nullptr;   ///< of the group that this worker may lead
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

  /// Opens the door and connects to all higher ranks. Rank 0 gives the initial parameters; version
  /// 0 of every SFB layer is reported when it is there.
  void start();

  /// See SfbRoute::factors_ready.
  void factors_ready(LayerIndex layer, Iteration iteration, std::uint64_t digest);

  /// "worker 2 at 10.0.0.4:4711, worker 3 at ...": whose part of the layer's next set has not come.
  /// For error messages.
  std::string awaited(LayerIndex layer) const;

  // From the door.
  absl::Status admit(const PeerStream& stream, const FactorHeader& hello,
                     std::size_t payload_bytes) override;
  void adopt(std::unique_ptr<PeerStream> stream, WorkerRank peer) override;

 private:
  struct Peer {
    WorkerRank rank;
    std::unique_ptr<PeerStream> stream;  ///< null while there is none
    bool greeted = false;                ///< its HELLO came on this stream
    Reconnect reconnect;
    OutageLog outage = {};
    std::uint64_t losses =
        0;            ///< of its stream: tells a timer whether it is still about the same one
    GaugePart queue;  ///< what waits to be sent to it
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
  std::vector<Nanoseconds> ready_since_;  ///< by LayerIndex: its newest factors
  std::vector<Peer> peers_;               ///< by rank; our own has no stream
  bool failed_ = false;
  /// Timers outlive us in the loop; they look here before they touch us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon
