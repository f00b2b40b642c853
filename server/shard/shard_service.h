#pragma once

// Serves a server's shard to workers' data streams.
//
// Called by: server/server_node.h, which assigns shards. Calls: sync/chunks/chunk_service.h, which
// moves messages between workers' streams and the shard; server/shard/shard.h, which makes all
// decisions.
//
// Everything runs on the transport's loop; assign, drop, halt and with_shard may be called from any
// thread.

#include <functional>
#include <memory>
#include <optional>

#include "common/probes/traffic.h"
#include "common/threads/team.h"
#include "common/transport/transport.h"
#include "common/wire/wire.h"
#include "server/shard/shard.h"
#include "sync/chunks/chunk_service.h"

namespace poseidon {

class ShardService final : public Acceptor {
 public:
  /// Receives frozen chunks, on the loop.
  using FrozenSink = std::function<void(Epoch, FrozenChunk)>;

  /// `transport` and `refusals` must outlive the service, which is destroyed only once the
  /// transport has stopped. `log` is called on the loop.
  /// `pending_limit_bytes`: see sync/chunks/early_budget.h. `team` outlives the service, and the
  /// loop alone calls it.
  ShardService(Transport* transport, RefusalCounts* refusals, RefusalLog log,
               std::int64_t pending_limit_bytes = kDefaultPendingLimitBytes,
               Team* team = sequential_team());

  /// Replaces the shard and closes the streams of the previous one. `done` runs on the loop
  /// afterwards. `traffic` must fit the plan's layers and live until the next assign or drop.
  void assign(Plan plan, ServerIndex self, OptimizerSpec optimizer,
              std::shared_ptr<TrafficProbe> traffic, std::function<void()> done);
  /// Ends the shard, if it has this epoch, and its streams. Frees its memory.
  void drop(Epoch epoch);
  /// Accepts no more messages of workers. `done`, on the loop, gets the halted shard, or null when
  /// it is gone.
  void halt(Epoch epoch, std::function<void(const Shard*)> done);
  /// Sets the receiver of frozen chunks; before the first assign.
  void set_frozen_sink(FrozenSink sink) { frozen_sink_ = std::move(sink); }
  /// Runs `function` on the loop with the shard of this epoch, or with null when it is gone.
  void with_shard(Epoch epoch, std::function<void(Shard*)> function);

  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    return streams_.on_accept(std::move(stream));
  }

  /// On the loop; null when there is no assignment of this epoch.
  Shard* shard_of(Epoch epoch) {
    return shard_ && shard_->plan().epoch == epoch ? &*shard_ : nullptr;
  }
  /// For observers on the loop; null without an assignment.
  const Shard* shard() const { return shard_ ? &*shard_ : nullptr; }

 private:
  void hand_over_frozen();

  Transport* const transport_;
  const std::int64_t pending_limit_bytes_;
  Team* const team_;
  const BspConsistency consistency_;
  std::shared_ptr<TrafficProbe> traffic_;
  std::optional<Shard> shard_;
  FrozenSink frozen_sink_;
  ChunkService streams_;
};

}  // namespace poseidon
