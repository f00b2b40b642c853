#pragma once

// The committed checkpoints of all jobs, for the operator's commands. An export holds a checkpoint
// for a moment, so that `checkpoint.keep` does not remove it during the export. Pure.
//
// Called by: coordinator/cluster/cluster.h, with the checkpoints that CheckpointArchive found and
// jobs commit and remove; it answers operators and removes. Calls: nothing.
//
// Invariant: a held checkpoint is not removed before its hold expires.

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

  /// Manifest files that could not be read, with reasons. Errors about a missing or the newest
  /// checkpoint mention them.
  void set_unread(std::vector<std::string> files) { unread_ = std::move(files); }
  const std::vector<std::string>& unread() const { return unread_; }
  /// Why the newest checkpoint known here may not be the newest that exists; "" when it is.
  std::string doubt_about_newest() const;

  /// By SnapshotId: oldest first.
  const std::map<SnapshotId, CheckpointManifest>& all() const { return all_; }
  std::vector<CheckpointManifest> of_job(const std::string& job_id) const;
  /// `id` as `checkpoint list` prints it; "": the newest. INVALID_ARGUMENT for an invalid id,
  /// NOT_FOUND for an unknown checkpoint, FAILED_PRECONDITION when there is none at all, DATA_LOSS
  /// when it, or any, could not be read.
  absl::StatusOr<const CheckpointManifest*> find(std::string_view id) const;

  /// Holds an existing checkpoint for kCheckpointHold from now.
  void hold(SnapshotId snapshot, Nanoseconds now);
  /// checkpoint.keep removes this checkpoint. Returns whether it may be removed now; if not,
  /// take_due returns it later.
  bool remove(const CheckpointManifest& manifest, Nanoseconds now);
  /// Checkpoints to remove whose holds have expired.
  std::vector<CheckpointManifest> take_due(Nanoseconds now);
  /// A job resumes from it: cancels a pending removal.
  void keep(SnapshotId snapshot) { waiting_.erase(snapshot); }

 private:
  std::string unread_text() const;

  std::map<SnapshotId, CheckpointManifest> all_;
  std::vector<std::string> unread_;
  std::map<SnapshotId, Nanoseconds> held_until_;
  std::map<SnapshotId, CheckpointManifest> waiting_;  ///< to be removed, but held
};

}  // namespace poseidon
