#pragma once

// The server's end of the data streams: moves messages between streams and the shard, on the
// transport's loop. All decisions are in server/shard.h.
//
// Before: common/transport.h delivers a worker's message. After: the shard's answer goes out, most
// urgent chunk first, one write at a time per stream.
//
// Everything runs on the transport's loop; assign and drop may be called from any thread.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/chunk_queue.h"
#include "common/traffic.h"
#include "common/transport.h"
#include "common/wire.h"
#include "server/shard.h"

namespace poseidon {

/// Streams that one server serves at a time; more are turned away. Far above 64 workers, so only a
/// flood meets it.
inline constexpr std::size_t kMaxSessions = 1024;

/// A stream that has not shown a valid message by then is closed: it would only take up a place.
inline constexpr Milliseconds kFirstMessageTimeout{30000};

class ShardService final : public Acceptor {
 public:
  /// What happened to a message that was not used; the service has counted it already.
  using RefusalLog = std::function<void(const std::string& peer, const Objection&)>;

  /// Takes what a shard has frozen, on the loop.
  using FrozenSink = std::function<void(Epoch, FrozenChunk)>;

  /// `transport` and `refusals` must outlive the service, which is destroyed only once the
  /// transport has stopped. `log` is called on the loop.
  /// `pending_limit_bytes`: see server/shard.h.
  ShardService(Transport* transport, RefusalCounts* refusals, RefusalLog log,
               std::int64_t pending_limit_bytes = kDefaultPendingLimitBytes);
  ~ShardService() override;

  /// Replaces the shard; streams of the one before are closed. `done` runs on the loop afterwards.
  /// `traffic` must fit the plan's layers and live until the next assign or drop.
  void assign(Plan plan, ServerIndex self, OptimizerSpec optimizer,
              std::shared_ptr<TrafficProbe> traffic, std::function<void()> done);
  /// Ends the shard, if it has this epoch, and its streams. Frees its memory.
  void drop(Epoch epoch);
  /// From now on no message of a worker is taken; `done`, on the loop, gets the shard as it stays,
  /// or null when it is gone.
  void halt(Epoch epoch, std::function<void(const Shard*)> done);
  /// Where frozen chunks go; before the first assign.
  void set_frozen_sink(FrozenSink sink) { frozen_sink_ = std::move(sink); }
  /// Runs `function` on the loop with the shard of this epoch, or with null when it is gone.
  void with_shard(Epoch epoch, std::function<void(Shard*)> function);

  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override;

  /// On the loop; null when the assignment is another, or none.
  Shard* shard_of(Epoch epoch) {
    return shard_ && shard_->plan().epoch == epoch ? &*shard_ : nullptr;
  }
  /// For observers on the loop; null without an assignment.
  const Shard* shard() const { return shard_ ? &*shard_ : nullptr; }

 private:
  class Session;

  ReadNext on_message(Session& session, const Bytes& message);
  ShardDecision take(const DecodedChunk& message);
  void bind(Session& session, WorkerRank rank);
  void refuse(Session& session, const Objection& objection, absl::StatusCode code);
  void enqueue(const Delivery& delivery);
  void offer_norms(Session& session, const Delivery& delivery);
  void send_norms(Session& session, ChunkId chunk);
  void pump(Session& session);
  void sent(TraceSpan span);
  void resume_paused();
  void hand_over_frozen();
  void remove(Session& session);
  void close(Session& session, const absl::Status& why);
  void close_if_still_unbound(std::uint64_t session_number);
  void close_all(const absl::Status& why);

  Transport* const transport_;
  RefusalCounts* const refusals_;
  const RefusalLog log_;
  const std::int64_t pending_limit_bytes_;
  const BspConsistency consistency_;
  std::optional<Shard> shard_;
  bool halted_ = false;  ///< the shard is kept as it is
  std::shared_ptr<TrafficProbe> traffic_;
  FrozenSink frozen_sink_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::uint64_t next_session_ = 0;
  /// Timers outlive us in the loop; they look here before they touch us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<Nanoseconds> stepped_at_;  ///< by ChunkId: the newest step; 0: none here
  std::vector<Session*> by_rank_;        ///< the stream that belongs to each rank, or null
};

}  // namespace poseidon
