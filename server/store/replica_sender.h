#pragma once

// Sends a server's own pieces of a checkpoint to the server that keeps them too
// (checkpoint.replicas: 2). That server stores them like pieces from a worker, and seals only when
// it has them all: so a checkpoint is committed only when both copies are on disks.
//
// Called by: server/server_node.h, with chunks that server/shard/shard_service.h froze;
// server/store/checkpoint_keeper.h gets them, too. Calls: common/checkpoint/store_client.h, to
// server/store/store_service.h of the other server.
//
// Waiting chunks are frozen memory, which is not copied until it is written to the stream.
// Everything here runs on the transport's loop.

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/checkpoint/store_client.h"
#include "common/wire/snapshot.h"
#include "server/store/frozen_chunk.h"

namespace poseidon {

/// Most snapshots that wait for the other server at a time; further ones fail.
inline constexpr std::size_t kMaxReplicasUnderWay = 2;

class ReplicaSender {
 public:
  /// Why the other server does not have its copy. Once per snapshot.
  using Failed = std::function<void(SnapshotId snapshot, const absl::Status& status)>;

  /// `stores` speaks kStoreMethod and outlives it.
  explicit ReplicaSender(Transport* stores, StoreTransferOptions options = kWriting);

  /// Begins an epoch: sends this server's chunks to `address`; "": sends none. Transfers in
  /// progress end without a callback.
  void begin(std::string address, Failed failed);
  void end() { begin("", nullptr); }

  void put(SnapshotId snapshot, FrozenChunk chunk);
  /// Announces the epoch's last snapshot: waiting snapshots do not make it fail.
  void expect(SnapshotId snapshot) { expected_ = snapshot; }

  /// Whether the snapshot failed in this epoch: put drops its chunks.
  bool has_failed(SnapshotId snapshot) const { return failed_snapshots_.contains(snapshot); }

 private:
  struct Waiting {
    SnapshotId snapshot;
    FrozenChunk chunk;
  };

  void send_next();
  void fail(SnapshotId snapshot, const absl::Status& status);

  Transport* const stores_;
  const StoreTransferOptions options_;
  std::string address_;
  Failed failed_;
  std::deque<Waiting> waiting_;            ///< as they came
  std::set<SnapshotId> failed_snapshots_;  ///< the last few
  SnapshotId expected_;
  SnapshotId sending_;                       ///< of transfer_
  std::unique_ptr<StoreTransfer> transfer_;  ///< pieces of one snapshot
};

}  // namespace poseidon
