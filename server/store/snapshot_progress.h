#pragma once

// Which pieces of which snapshots have come, and when a snapshot is whole. Pure; one thread.
//
// Before: server/store/checkpoint_keeper.h was given a piece. After: it writes, seals or gives up.

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/snapshot.h"

namespace poseidon {

/// Snapshots that are being made at a time. A disk that is still busy with so many does not get a
/// further one: each holds a copy of what training has overwritten since.
inline constexpr std::size_t kMaxOpenSnapshots = 2;

class SnapshotProgress {
 public:
  /// A new epoch, in which every snapshot has so many pieces here. What was open is given up.
  /// Returns those, to be removed from the store.
  std::vector<SnapshotId> begin(Epoch epoch, std::size_t pieces);

  /// Whether a piece of this snapshot is wanted. FAILED_PRECONDITION: of another epoch, or sealed.
  /// OUT_OF_RANGE: too many are open, or were when its first piece came; a later one may find room.
  /// ABORTED: the snapshot failed before.
  absl::Status admit(SnapshotId snapshot);

  /// Why a snapshot is left out when too many are open.
  static absl::Status too_many(SnapshotId snapshot);
  /// admit() takes its pieces from now on, however many others are open. Of the epoch in force, and
  /// not gone.
  void make_room(SnapshotId snapshot);

  /// A piece is in the store. True: it was the last one.
  bool stored(SnapshotId snapshot, PieceId piece, std::int64_t bytes);
  /// The snapshot is durable.
  void sealed(SnapshotId snapshot);
  /// It will never be: no further piece is wanted. False when that was known before.
  bool failed(SnapshotId snapshot);
  /// It is gone, sealed or not: it will not be made a second time. False when it had failed or was
  /// sealed.
  bool forget(SnapshotId snapshot);

  bool is_sealed(SnapshotId snapshot) const { return sealed_.contains(snapshot); }
  /// Failed, or forgotten: whoever asks for it waits in vain.
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
  /// Of this epoch; bounded by kMaxRemembered. Those forgotten were sealed.
  std::set<SnapshotId> sealed_, failed_, forgotten_;
  std::set<SnapshotId> left_out_;  ///< for want of room
};

}  // namespace poseidon
