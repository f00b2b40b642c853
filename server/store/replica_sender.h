#pragma once

// Sends a server's own pieces of a checkpoint to the server that keeps them too
// (checkpoint.replicas: 2). That server stores them like pieces from a worker, and seals only when
// it has them all: so a checkpoint is committed only when both copies are on disks.
//
// Before: server/shard/shard_service.h froze a chunk, and server/store/checkpoint_keeper.h has been
// given it too. After: common/checkpoint/store_client.h, to server/store/store_service.h of the
// other server.
//
// What waits to be sent is frozen memory, not copied until it is written to the stream. Everything
// here runs on the transport's loop.

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

/// Snapshots that wait for the other server at a time; what comes due beyond fails.
inline constexpr std::size_t kMaxReplicasUnderWay = 2;

class ReplicaSender {
 public:
  /// Why the other server does not have its copy. Once per snapshot.
  using Failed = std::function<void(SnapshotId snapshot, const absl::Status& status)>;

  /// `stores` speaks kStoreMethod and outlives it.
  explicit ReplicaSender(Transport* stores, StoreTransferOptions options = kWriting);

  /// A new epoch: the chunks of this server go to `address`; "": to nobody. What was under way
  /// ends without a word.
  void begin(std::string address, Failed failed);
  void end() { begin("", nullptr); }

  void put(SnapshotId snapshot, FrozenChunk chunk);
  /// The epoch's last one: it does not fail for others that wait.
  void expect(SnapshotId snapshot) { expected_ = snapshot; }

  /// Of this epoch: put drops its chunks.
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
