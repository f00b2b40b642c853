#pragma once

// Streams to those who have the chunks, on the transport's loop: opened, opened again after a cut,
// given what the route has for them, one message at a time each. A worker has them to its servers,
// or to the relay of its group; a relay has them to the servers.
//
// Before: sync/client/syncer.h or sync/relay/relay_service.h hears that gradients are ready. After:
// sync/routes/ps_route.h decides what each stream sends and what an answer does; ChunkEvents
// (sync/links/sync_events.h) hears of it.

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
  /// What the other sides are: for messages.
  enum class Towards : std::uint8_t { kServers, kRelay };

  /// Where the first parameters come from.
  enum class FirstParameters : std::uint8_t {
    kGiven,      ///< from the route's memory; those who have the chunks give them back
    kFetched,    ///< from those who have the chunks
    kRequested,  ///< from the route's memory, chunk by chunk, as request() says
  };

  /// One stream for each server of the route's plan that owns chunks. Pointers must outlive it.
  /// `options` says how patient it is.
  ChunkLinks(Transport* transport, PsRoute route, Towards towards, const SyncerOptions& options,
             ChunkEvents* events, TrafficProbe* traffic, RefusalCounts* refusals);
  ~ChunkLinks();
  ChunkLinks(const ChunkLinks&) = delete;
  ChunkLinks& operator=(const ChunkLinks&) = delete;

  // On the loop. Each sends what it leads to; once the links have failed none does anything.

  /// Once: connects to all other sides.
  void start(FirstParameters first);
  /// See PsRoute::gradient_ready.
  void gradient_ready(LayerIndex layer, Iteration iteration);
  /// The same of chunks; they are queued together, so the most urgent one leaves first.
  void request(std::span<const ChunkRequest> requests);
  /// See PsRoute::layer_measured. What that completes of norms, `events` hears.
  void layer_measured(LayerIndex layer, Iteration iteration, std::vector<TensorSquares> tensors);
  /// See PsRoute::pull_exact.
  void fetch_exact();

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
  std::vector<Nanoseconds> ready_since_;  ///< by LayerIndex: its newest gradient
  std::vector<std::unique_ptr<Link>> links_;
  bool failed_ = false;
  /// Timers outlive us in the loop; they look here before they touch us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon
