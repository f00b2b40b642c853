#pragma once

// The holder's end of data streams: moves messages between workers' streams and the holder of the
// chunks, which is a server's shard (shard_service.h) or the relay of a group of workers
// (sync/relay/relay_service.h). The holder makes all decisions.
//
// Called by: common/transport/transport.h, which accepts streams and delivers messages;
// server/shard/shard_service.h and sync/relay/relay_service.h open and close it. Calls:
// sync/chunks/chunk_holder.h for each message. It sends the holder's answers, the most urgent chunk
// first, one write at a time per stream.
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

/// Streams served at a time; more are refused. Far above 64 workers, so only a flood reaches it.
inline constexpr std::size_t kMaxSessions = 1024;

/// A stream that has not sent a valid message by then is closed, to free its place.
inline constexpr Milliseconds kFirstMessageTimeout{30000};

class ChunkService final : public Acceptor {
 public:
  /// `transport` and `refusals` must outlive the service, which is destroyed only once the
  /// transport has stopped. `end`: kRelay, or kNone for a server. `taken` is called after each
  /// message that the holder accepted, once its answer is queued. `taken` and `log` may be empty.
  ChunkService(Transport* transport, RefusalCounts* refusals, RelayEnd end, RefusalLog log,
               std::function<void()> taken);
  ~ChunkService() override;

  /// Passes messages to `holder` from now on. Both must live until close; `traffic` must fit the
  /// plan's layers.
  void open(ChunkHolder* holder, TrafficProbe* traffic);
  /// Lets go of the holder and closes all streams. At any time.
  void close(const absl::Status& why);
  /// Ignores all messages of workers until close.
  void halt() { halted_ = true; }

  /// Sends a delivery that no worker's message caused.
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
  /// Timers in the loop outlive this object; they check this flag before they touch it.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<Nanoseconds> made_at_;  ///< by ChunkId: its newest version; 0: none since open
  std::vector<Session*> by_rank_;     ///< the stream that belongs to each rank, or null
};

}  // namespace poseidon
