#pragma once

// The streams to the holders of chunks, on the transport's loop. Opens each stream, opens it again
// after a cut, and sends the route's messages on it, one at a time. A worker has streams to its
// servers or to the relay of its group; a relay has streams to the servers.
//
// Called by: sync/client/syncer.h or sync/relay/relay_service.h, when gradients are ready. Calls:
// sync/routes/ps_route.h, which decides what each stream sends and handles each answer; ChunkEvents
// (sync/links/sync_events.h), with what has landed.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/probes/traffic.h"
#include "common/transport/transport.h"
#include "common/wire/wire.h"
#include "sync/links/reconnect.h"
#include "sync/links/sync_events.h"
#include "sync/routes/ps_route.h"

namespace poseidon {

class ChunkLinks {
 public:
  /// The kind of the other sides, for messages.
  enum class Towards : std::uint8_t { kServers, kRelay };

  /// Where the first parameters come from.
  enum class FirstParameters : std::uint8_t {
    kGiven,      ///< from the route's memory; the holders send them back
    kFetched,    ///< from the holders
    kRequested,  ///< from the route's memory, chunk by chunk, as request() says
  };

  /// One stream for each server of the route's plan that owns chunks. Pointers must outlive it.
  /// `options`: pauses before reconnecting and the time until it gives up.
  ChunkLinks(Transport* transport, PsRoute route, Towards towards, const SyncerOptions& options,
             ChunkEvents* events, TrafficProbe* traffic, RefusalCounts* refusals);
  ~ChunkLinks();
  ChunkLinks(const ChunkLinks&) = delete;
  ChunkLinks& operator=(const ChunkLinks&) = delete;

  // On the loop. Each call also sends the messages that it makes ready. After sync_failed they do
  // nothing.

  /// Connects to all other sides. Call once.
  void start(FirstParameters first);
  /// See PsRoute::gradient_ready.
  void gradient_ready(LayerIndex layer, Iteration iteration);
  /// The same for single chunks. They are queued together, so the most urgent one leaves first.
  void request(std::span<const ChunkRequest> requests);
  /// See PsRoute::step_rates.
  void step_rates(Iteration iteration, ProgramRates rates);
  /// See PsRoute::layer_measured. Norms that it completes are reported to `events`.
  void layer_measured(LayerIndex layer, Iteration iteration, std::vector<TensorSquares> tensors);
  /// See PsRoute::pull_exact.
  void fetch_exact();
  /// See PsRoute::awaited. Behind a relay its leader's rank takes the place of the server.
  std::vector<AwaitedData> awaited(LayerIndex layer) const;

 private:
  class Link;

  RelayEnd relay_end() const {
    return towards_ == Towards::kRelay ? RelayEnd::kWorker : RelayEnd::kNone;
  }
  void connect(Link& link);
  void pump(Link& link);
  void pump_all();
  void settle(const NormBook::Complete& norms);
  void sent(TraceSpan span);
  void on_message(Link& link, const Bytes& message);
  void refuse(const Link& link, const Objection& objection);
  void count_landed(const Link& link, const ChunkLanded& chunk, Nanoseconds since);
  void on_closed(Link& link, const absl::Status& status);
  void fail(const absl::Status& status);

  Transport* const transport_;
  const Towards towards_;
  const SyncerOptions options_;
  ChunkEvents* const events_;
  TrafficProbe* const traffic_;
  RefusalCounts* const refusals_;
  PsRoute route_;
  std::vector<Nanoseconds> ready_since_;  ///< by LayerIndex: when its newest gradient was ready
  std::vector<std::unique_ptr<Link>> links_;
  bool failed_ = false;
  /// Timers in the loop outlive this object; they check this flag before they touch it.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon
