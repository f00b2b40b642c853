#pragma once

// Tracks which pieces of snapshots are stored and when a snapshot is complete. Pure; one thread.
//
// Called by: server/store/checkpoint_keeper.h for each piece; it then writes, seals or gives up.
// Calls: nothing.

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/snapshot.h"

namespace poseidon {

/// Most snapshots in progress. A disk that is busy with these gets no further one, because each
/// holds a copy of what training has overwritten since.
inline constexpr std::size_t kMaxOpenSnapshots = 2;

class SnapshotProgress {
 public:
  /// Begins an epoch, in which every snapshot has `pieces` pieces here. Gives up open snapshots and
  /// returns them, to be removed from the store.
  std::vector<SnapshotId> begin(Epoch epoch, std::size_t pieces);

  /// Whether a piece of this snapshot is wanted. FAILED_PRECONDITION: another epoch, or sealed.
  /// OUT_OF_RANGE: too many are open, or were when its first piece came; a later snapshot may
  /// succeed. ABORTED: the snapshot failed before.
  absl::Status admit(SnapshotId snapshot);

  /// Why a snapshot is left out when too many are open.
  static absl::Status too_many(SnapshotId snapshot);
  /// Makes admit() accept its pieces however many others are open. The snapshot must be of the
  /// current epoch and not gone.
  void make_room(SnapshotId snapshot);

  /// A piece is stored. Returns true when it was the last one.
  bool stored(SnapshotId snapshot, PieceId piece, std::int64_t bytes);
  /// The snapshot is durable.
  void sealed(SnapshotId snapshot);
  /// The snapshot failed: its pieces are no longer wanted. False when that was known before.
  bool failed(SnapshotId snapshot);
  /// The snapshot is gone, sealed or not, and will not be made again. False when it had failed or
  /// was sealed.
  bool forget(SnapshotId snapshot);

  bool is_sealed(SnapshotId snapshot) const { return sealed_.contains(snapshot); }
  /// Whether it failed or was forgotten, so that it will never be complete.
  bool is_gone(SnapshotId snapshot) const {
    return failed_.contains(snapshot) || forgotten_.contains(snapshot);
  }
  std::int64_t bytes(SnapshotId snapshot) const;  ///< stored so far; 0 unless open

 private:
  struct Open {
    std::set<PieceId> pieces;
    std::int64_t bytes = 0;
  };
  Epoch epoch_;
  std::size_t pieces_ = 0;
  std::map<SnapshotId, Open> open_;
  /// Of this epoch; bounded by kMaxRemembered. Forgotten ones were sealed.
  std::set<SnapshotId> sealed_, failed_, forgotten_;
  std::set<SnapshotId> left_out_;  ///< because too many were open
};

}  // namespace poseidon
