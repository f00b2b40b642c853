#pragma once

// A server's checkpoints on disk. It accepts frozen chunks and pieces from workers, writes them in
// the background, seals a snapshot when all its pieces are stored, and reads pieces for nodes that
// restore. It also keeps worker 0's own state of the last few iterations in memory.
//
// Called by: server/server_node.h, with chunks that server/shard/shard_service.h froze;
// server/store/store_service.h, with requests. Calls: server/store/chunk_store.h (RocksDB). The
// node reports results to the coordinator.
//
// Threads: it has one thread, for all disk calls and all callbacks. Every public method may be
// called from any thread and returns at once.
//
// A whole shard is frozen within one iteration, and a slow disk takes minutes to write it. Other
// requests, and the end of the epoch, wait for at most kBytesPerTurn of it.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/probes/node_probe.h"
#include "common/threads/mutex.h"
#include "common/threads/thread_roles.h"
#include "common/transport/background.h"
#include "common/wire/snapshot.h"
#include "server/store/chunk_store.h"
#include "server/store/frozen_chunk.h"
#include "server/store/held_states.h"
#include "server/store/snapshot_progress.h"
#include "server/store/store_owner.h"

namespace poseidon {

/// The result of one snapshot on this server.
struct SnapshotResult {
  SnapshotId snapshot;
  absl::Status status;  ///< OK: sealed
  std::int64_t bytes = 0;
  double seconds = 0.0;  ///< from its first piece
};

class CheckpointKeeper {
 public:
  using ResultCallback = std::function<void(const SnapshotResult&)>;
  using ReadCallback = std::function<void(absl::StatusOr<std::shared_ptr<const StoredChunk>>)>;
  using WriteCallback = std::function<void(const absl::Status&)>;

  /// Bytes of frozen chunks that are written before other tasks get a turn; at least one chunk.
  static constexpr std::int64_t kBytesPerTurn = 16 << 20;

  /// `background` runs only this keeper's tasks and is destroyed before the keeper. `probe` gets
  /// figures of queue and store; may be null.
  CheckpointKeeper(std::unique_ptr<ChunkStore> store, Background* background,
                   std::shared_ptr<NodeProbe> probe = nullptr);

  /// Begins an epoch, in which every snapshot has `pieces` pieces here. `on_result` gets the result
  /// of each. Removes unsealed snapshots of the previous epoch.
  void begin(Epoch epoch, std::size_t pieces, ResultCallback on_result);
  /// Ends the epoch, if it is the current one: `on_result` is not called any more.
  void end(Epoch epoch);

  /// Drops the chunk when the snapshot is no longer wanted. Also drops it, and fails the snapshot,
  /// when chunks of kMaxOpenSnapshots others still wait for the disk.
  void put(SnapshotId snapshot, FrozenChunk chunk);
  /// The same for a piece from a worker; `done` says whether it is stored.
  void put(SnapshotId snapshot, StoredChunk piece, WriteCallback done);
  /// Sets the file that records the owner of the snapshots; call it first. Without it keep_only
  /// removes nothing.
  void remember_owner_in(std::filesystem::path file);
  /// Removes sealed snapshots that are neither wanted nor of the current epoch, if the store
  /// belongs to this coordinator (server/store/store_owner.h).
  void keep_only(WantedSnapshots wanted);
  /// Announces the last snapshot of the current epoch, which is saved from memory. `on_result` is
  /// called at once if it failed here before or was forgotten. Snapshots that wait for the disk do
  /// not make it fail, because they may never be complete. Call it before its pieces are put.
  void expect(SnapshotId snapshot);
  /// Drops an unwanted snapshot: it failed elsewhere, or newer ones are kept instead. If it was
  /// sealed in the current epoch, `on_result` gets CANCELLED.
  void forget(SnapshotId snapshot);
  /// The newest epoch with a snapshot sealed here; 0: none. Any thread.
  Epoch newest_epoch() const { return Epoch(newest_epoch_.load(std::memory_order_relaxed)); }

  /// Reads a piece of a sealed snapshot. NOT_FOUND, DATA_LOSS.
  void read(SnapshotId snapshot, PieceId piece, ReadCallback done);

  // ---- worker 0's own state, in memory: server/store/held_states.h; answered at once ----
  absl::Status hold_state(SnapshotId snapshot, std::vector<float> state);
  HeldStates::State held_state(SnapshotId snapshot);  ///< null where it is not held
  struct StateRange {
    Iteration oldest = 0, newest = 0;
  };
  /// nullopt when no state was sent in this epoch: worker 0 has none.
  std::optional<StateRange> held_states();
  /// Stores the held state as a piece, or an empty piece when worker 0 has no state. NOT_FOUND:
  /// only states of other iterations are held.
  absl::Status put_held_state(SnapshotId snapshot, PieceId piece);

 private:
  struct Started {
    SnapshotId snapshot;
    std::chrono::steady_clock::time_point at;
  };
  struct Waiting {
    SnapshotId snapshot;
    FrozenChunk chunk;
  };

  void change_epoch(Epoch epoch, std::size_t pieces, ResultCallback on_result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);
  void enqueue(std::function<void()> task);
  void enqueue_writes();
  void enqueue_change(std::function<void()> change);
  void write_frozen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);
  std::optional<Waiting> next_frozen();
  void remove_now(SnapshotId snapshot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);
  void remove_left_overs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);
  void remove_own(SnapshotId snapshot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);
  void keep_only_now(const WantedSnapshots& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);
  void remember_owner() ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);
  void show_store() ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);
  absl::Status admit(SnapshotId snapshot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);
  absl::Status store(SnapshotId snapshot, const ChunkView& chunk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);
  /// Tells the probe of a piece, or of the sealing.
  void wrote(SnapshotId snapshot, Nanoseconds since, std::optional<PieceId> piece,
             std::int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);
  void fail(SnapshotId snapshot, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);
  void report(SnapshotId snapshot, const absl::Status& status, std::int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_);

  Background* const background_;
  const std::shared_ptr<NodeProbe> probe_;

  ThreadRole disk_;  ///< of the tasks that the background runs
  const std::unique_ptr<ChunkStore> store_ ABSL_PT_GUARDED_BY(disk_);
  Epoch epoch_ ABSL_GUARDED_BY(disk_);
  SnapshotProgress progress_ ABSL_GUARDED_BY(disk_);
  /// Snapshots with the number of the current or last epoch that existed when it began: they belong
  /// to another coordinator, whose epochs have the same numbers.
  std::set<SnapshotId> of_others_ ABSL_GUARDED_BY(disk_);
  std::filesystem::path owner_file_
      ABSL_GUARDED_BY(disk_);  ///< "": unwanted snapshots are not removed
  StoreOwner owner_ ABSL_GUARDED_BY(disk_);
  absl::Status owner_status_ ABSL_GUARDED_BY(disk_);  ///< not OK: the file's content is not valid
  ResultCallback on_result_ ABSL_GUARDED_BY(disk_);
  std::vector<Started> started_ ABSL_GUARDED_BY(disk_);    ///< open snapshots
  std::set<SnapshotId> left_over_ ABSL_GUARDED_BY(disk_);  ///< whose removal failed
  SnapshotId cached_of_
      ABSL_GUARDED_BY(disk_);  ///< of the piece read last: its slots are requested one by one
  std::shared_ptr<const StoredChunk> cached_ ABSL_GUARDED_BY(disk_);

  std::atomic<std::uint64_t> newest_epoch_{0};

  Mutex mutex_;
  /// Wait for the disk. Other tasks are bounded by the windows of the streams that
  /// they come from.
  std::deque<Waiting> frozen_ ABSL_GUARDED_BY(mutex_);
  std::map<SnapshotId, std::size_t> queued_chunks_ ABSL_GUARDED_BY(mutex_);  ///< how many of each
  SnapshotId expected_ ABSL_GUARDED_BY(mutex_);                              ///< always has room
  bool writes_frozen_ ABSL_GUARDED_BY(mutex_) = false;  ///< a task to write frozen_ is queued
  /// Number of queued tasks that may make chunks unwanted; no chunk is written until they have run.
  std::size_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  HeldStates states_ ABSL_GUARDED_BY(mutex_);
  GaugePart queue_ ABSL_GUARDED_BY(mutex_);  ///< all of frozen_
};

}  // namespace poseidon
