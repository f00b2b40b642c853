#pragma once

// A server's checkpoints on disk: takes frozen chunks and given pieces, writes them in the
// background, seals a snapshot when all its pieces are there, and reads pieces for who goes on from
// one. Beside them, in memory: worker 0's own state of the last few iterations.
//
// Before: server/shard/shard_service.h froze a chunk; server/store/store_service.h took a request.
// After: server/store/chunk_store.h (RocksDB), and the coordinator hears of the result.
//
// Threads: one of its own, on which all disk calls and all callbacks happen. Every public method
// may be called from any thread and returns at once.
//
// A whole shard is frozen within one iteration, and a slow disk takes minutes to write it. What
// others ask meanwhile, and the end of the epoch, wait for no more than kBytesPerTurn of it.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/probes/node_probe.h"
#include "common/transport/background.h"
#include "common/wire/snapshot.h"
#include "server/store/chunk_store.h"
#include "server/store/frozen_chunk.h"
#include "server/store/held_states.h"
#include "server/store/snapshot_progress.h"
#include "server/store/store_owner.h"

namespace poseidon {

/// How the making of one snapshot ended here.
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

  /// Of frozen chunks that are written before others' tasks have a turn again; at least one chunk.
  static constexpr std::int64_t kBytesPerTurn = 16 << 20;

  /// `background` runs only this keeper's tasks, and dies before the keeper.
  /// `probe` hears of queue and store; null: nobody looks.
  CheckpointKeeper(std::unique_ptr<ChunkStore> store, Background* background,
                   std::shared_ptr<NodeProbe> probe = nullptr);

  /// A new epoch: every snapshot of it has so many pieces here; `on_result` hears how each ends.
  /// Unsealed snapshots of the epoch before are removed.
  void begin(Epoch epoch, std::size_t pieces, ResultCallback on_result);
  /// The epoch is over, if it is still this one: `on_result` is called no more.
  void end(Epoch epoch);

  /// Drops the chunk where the snapshot is not wanted any more, and at once where those of
  /// kMaxOpenSnapshots others still wait for the disk: that snapshot fails.
  void put(SnapshotId snapshot, FrozenChunk chunk);
  /// Likewise a piece from a worker; `done` says whether it is in the store.
  void put(SnapshotId snapshot, StoredChunk piece, WriteCallback done);
  /// Where to remember whose the snapshots are; before anything else. Without it nothing is removed
  /// by keep_only.
  void remember_owner_in(std::filesystem::path file);
  /// Removes what is sealed, but neither wanted nor of the epoch in force, if the store is this
  /// coordinator's (server/store/store_owner.h).
  void keep_only(WantedSnapshots wanted);
  /// Somebody waits for this snapshot of the epoch in force, which is saved from memory, and is the
  /// last one of it: `on_result` hears at once if it has failed here before, or was forgotten. It
  /// fails for no other that waits for the disk, which may never become whole. Before its pieces
  /// are put.
  void expect(SnapshotId snapshot);
  /// The snapshot is not wanted: its making has failed elsewhere, or newer ones are kept instead.
  /// Where it was sealed in the epoch in force, `on_result` hears that it is gone (CANCELLED).
  void forget(SnapshotId snapshot);
  /// Of which a snapshot was ever sealed here; 0: of none. Any thread.
  Epoch newest_epoch() const { return Epoch(newest_epoch_.load(std::memory_order_relaxed)); }

  /// Of a sealed snapshot. NOT_FOUND, DATA_LOSS.
  void read(SnapshotId snapshot, PieceId piece, ReadCallback done);

  // ---- worker 0's own state, in memory: server/store/held_states.h; answered at once ----
  absl::Status hold_state(SnapshotId snapshot, std::vector<float> state);
  HeldStates::State held_state(SnapshotId snapshot);  ///< null where it is not held
  struct StateRange {
    Iteration oldest = 0, newest = 0;
  };
  /// Nothing when no state was sent in this epoch: worker 0 has none.
  std::optional<StateRange> held_states();
  /// Makes a piece of the one that is held, or an empty one where worker 0 has none. NOT_FOUND:
  /// others are held.
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

  void change_epoch(Epoch epoch, std::size_t pieces, ResultCallback on_result);
  void enqueue_change(std::function<void()> change);
  void write_frozen();
  std::optional<Waiting> next_frozen();
  void remove_now(SnapshotId snapshot);
  void remove_left_overs();
  void remove_own(SnapshotId snapshot);
  void keep_only_now(const WantedSnapshots& wanted);
  void remember_owner();
  void show_store();
  absl::Status admit(SnapshotId snapshot);
  absl::Status store(SnapshotId snapshot, const ChunkView& chunk);
  /// Tells the probe of a piece, or of the sealing.
  void wrote(SnapshotId snapshot, Nanoseconds since, std::optional<PieceId> piece,
             std::int64_t bytes);
  void fail(SnapshotId snapshot, const absl::Status& status);
  void report(SnapshotId snapshot, const absl::Status& status, std::int64_t bytes);

  Background* const background_;
  const std::shared_ptr<NodeProbe> probe_;

  // Touched by the background tasks only.
  const std::unique_ptr<ChunkStore> store_;
  Epoch epoch_;
  SnapshotProgress progress_;
  /// Of the epoch in force or the last one, when it began: another coordinator's, which counts its
  /// epochs likewise.
  std::set<SnapshotId> of_others_;
  std::filesystem::path owner_file_;  ///< "": nothing is removed because nobody wants it
  StoreOwner owner_;
  absl::Status owner_status_;  ///< not OK: what the file says is not true
  ResultCallback on_result_;
  std::vector<Started> started_;    ///< open snapshots
  std::set<SnapshotId> left_over_;  ///< that the disk did not let go
  SnapshotId cached_of_;            ///< of the piece read last: its slots are asked for one by one
  std::shared_ptr<const StoredChunk> cached_;

  std::atomic<std::uint64_t> newest_epoch_{0};

  std::mutex mutex_;
  /// Wait for the disk; under mutex_. Other tasks are bounded by the windows of the streams that
  /// they come from.
  std::deque<Waiting> frozen_;
  std::map<SnapshotId, std::size_t> queued_chunks_;  ///< how many of each; under mutex_
  SnapshotId expected_;                              ///< for which there is room; under mutex_
  bool writes_frozen_ = false;                       ///< a task will write them; under mutex_
  /// Tasks that may make chunks unwanted, not begun: none is written meanwhile. Under mutex_.
  std::size_t changes_ = 0;
  HeldStates states_;  ///< under mutex_
  GaugePart queue_;    ///< all of frozen_; under mutex_
};

}  // namespace poseidon
