#pragma once

// The end of the data streams where chunks are: moves messages between workers' streams and whoever
// holds the chunks, a server's shard (shard_service.h) or the relay of a group of workers
// (sync/relay/relay_service.h). All decisions are the holder's.
//
// Before: common/transport/transport.h delivers a worker's message. After: the holder's answer goes
// out, most urgent chunk first, one write at a time per stream.
//
// Everything runs on the transport's loop.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/chunk_queue.h"
#include "common/probes/refusal_log.h"
#include "common/probes/traffic.h"
#include "common/transport/transport.h"
#include "common/wire/wire.h"
#include "sync/chunks/chunk_holder.h"

namespace poseidon {

/// Streams that are served at a time; more are turned away. Far above 64 workers, so only a flood
/// meets it.
inline constexpr std::size_t kMaxSessions = 1024;

/// A stream that has not shown a valid message by then is closed: it would only take up a place.
inline constexpr Milliseconds kFirstMessageTimeout{30000};

class ChunkService final : public Acceptor {
 public:
  /// `transport` and `refusals` must outlive the service, which is destroyed only once the
  /// transport has stopped. `end`: kRelay, or kNone for a server. `taken`: after every message that
  /// the holder took, once its answer is under way. May be empty, as `log` may.
  ChunkService(Transport* transport, RefusalCounts* refusals, RelayEnd end, RefusalLog log,
               std::function<void()> taken);
  ~ChunkService() override;

  /// From now on `holder` is asked. Both must live until close; `traffic` must fit the plan's
  /// layers.
  void open(ChunkHolder* holder, TrafficProbe* traffic);
  /// Nobody is asked any more; streams are closed. At any time.
  void close(const absl::Status& why);
  /// No message of a worker is taken any more until close.
  void halt() { halted_ = true; }

  /// Something that came about without a message of a worker.
  void deliver(const Delivery& delivery);

  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override;

 private:
  class Session;

  ReadNext on_message(Session& session, const Bytes& message);
  ChunkDecision take(const DecodedChunk& message);
  void bind(Session& session, WorkerRank rank);
  void refuse(Session& session, const Objection& objection, absl::StatusCode code);
  void enqueue(const Delivery& delivery);
  void offer_norms(Session& session, const Delivery& delivery);
  void send_norms(Session& session, ChunkId chunk);
  void pump(Session& session);
  void sent(TraceSpan span);
  void resume_paused();
  void remove(Session& session);
  void close(Session& session, const absl::Status& why);
  void close_if_still_unbound(std::uint64_t session_number);
  void close_all(const absl::Status& why);

  Transport* const transport_;
  RefusalCounts* const refusals_;
  const RelayEnd end_;
  const std::string who_;  ///< for messages
  const RefusalLog log_;
  const std::function<void()> taken_;
  ChunkHolder* holder_ = nullptr;
  TrafficProbe* traffic_ = nullptr;  ///< null exactly when holder_ is
  bool halted_ = false;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::uint64_t next_session_ = 0;
  /// Timers outlive us in the loop; they look here before they touch us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<Nanoseconds> made_at_;  ///< by ChunkId: its newest version; 0: none since open
  std::vector<Session*> by_rank_;     ///< the stream that belongs to each rank, or null
};

}  // namespace poseidon
