#pragma once

// The committed checkpoints of all jobs, as the operator's commands see them. An export holds one
// for a moment, so that `checkpoint.keep` does not remove it under the reader's hands. Pure.
//
// Before: what CheckpointArchive found on disk, and what jobs commit and remove. After: cluster.h
// answers operators, and removes.
//
// Invariant: what is held is not removed before its hold has run out.

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/checkpoint/checkpoint.h"

namespace poseidon {

/// How long one LocateCheckpoint keeps a checkpoint.
inline constexpr Nanoseconds kCheckpointHold = std::chrono::seconds(60);

/// One thread only (the cluster holds its mutex). `now` never goes backwards.
class CheckpointCatalog {
 public:
  void add(CheckpointManifest manifest);

  /// Of files that should be manifests and could not be read: which, and why. Whoever looks for a
  /// checkpoint in vain, or for the newest, hears of them.
  void set_unread(std::vector<std::string> files) { unread_ = std::move(files); }
  const std::vector<std::string>& unread() const { return unread_; }
  /// Why what is the newest here may not be the newest that there is; "" when it is.
  std::string doubt_about_newest() const;

  /// By SnapshotId: oldest first.
  const std::map<SnapshotId, CheckpointManifest>& all() const { return all_; }
  std::vector<CheckpointManifest> of_job(const std::string& job_id) const;
  /// `id` as `checkpoint list` prints it; "": the newest. INVALID_ARGUMENT for text that is none,
  /// NOT_FOUND where there is no such checkpoint, FAILED_PRECONDITION where there is none at all,
  /// DATA_LOSS where it, or any, could not be read.
  absl::StatusOr<const CheckpointManifest*> find(std::string_view id) const;

  /// Until kCheckpointHold from now. The checkpoint is there.
  void hold(SnapshotId snapshot, Nanoseconds now);
  /// `keep` says that it goes. Whether it may now; if not, take_due gives it later.
  bool remove(const CheckpointManifest& manifest, Nanoseconds now);
  /// Those to be removed whose holds have run out.
  std::vector<CheckpointManifest> take_due(Nanoseconds now);
  /// A job goes on from it: it stays, whatever remove said.
  void keep(SnapshotId snapshot) { waiting_.erase(snapshot); }

 private:
  std::string unread_text() const;

  std::map<SnapshotId, CheckpointManifest> all_;
  std::vector<std::string> unread_;
  std::map<SnapshotId, Nanoseconds> held_until_;
  std::map<SnapshotId, CheckpointManifest> waiting_;  ///< to be removed, but held
};

}  // namespace poseidon
