#include "server/store/snapshot_progress.h"

#include "absl/strings/str_cat.h"

namespace poseidon {
namespace {

/// Number of ended snapshots to remember, in order to tell a late piece why it is refused.
constexpr std::size_t kMaxRemembered = 1024;

void remember(std::set<SnapshotId>& set, SnapshotId snapshot) {
  set.insert(snapshot);
  if (set.size() > kMaxRemembered) set.erase(set.begin());
}

}  // namespace

std::vector<SnapshotId> SnapshotProgress::begin(Epoch epoch, std::size_t pieces) {
  std::vector<SnapshotId> given_up;
  for (const auto& [snapshot, open] : open_) given_up.push_back(snapshot);
  open_.clear();
  sealed_.clear();
  failed_.clear();
  forgotten_.clear();
  left_out_.clear();
  epoch_ = epoch;
  pieces_ = pieces;
  return given_up;
}

absl::Status SnapshotProgress::admit(SnapshotId snapshot) {
  const std::string name = snapshot_name(snapshot);
  if (snapshot_epoch(snapshot) != epoch_) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", name, " is of another epoch than ", epoch_.value()));
  }
  if (sealed_.contains(snapshot)) {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint ", name, " is complete here"));
  }
  if (left_out_.contains(snapshot)) return too_many(snapshot);
  if (failed_.contains(snapshot)) {
    return absl::AbortedError(absl::StrCat("checkpoint ", name, " has failed here"));
  }
  if (open_.contains(snapshot)) return absl::OkStatus();
  if (open_.size() >= kMaxOpenSnapshots) {
    remember(left_out_, snapshot);
    return too_many(snapshot);
  }
  open_[snapshot];
  return absl::OkStatus();
}

void SnapshotProgress::make_room(SnapshotId snapshot) {
  if (!sealed_.contains(snapshot)) open_[snapshot];
}

absl::Status SnapshotProgress::too_many(SnapshotId snapshot) {
  return absl::OutOfRangeError(absl::StrCat(
      "checkpoint ", snapshot_name(snapshot), " is left out: the disk is still busy with ",
      kMaxOpenSnapshots,
      " earlier ones; set checkpoint.every_iterations higher or give the server a faster disk"));
}

bool SnapshotProgress::stored(SnapshotId snapshot, PieceId piece, std::int64_t bytes) {
  const auto open = open_.find(snapshot);
  if (open == open_.end() || !open->second.pieces.insert(piece).second) return false;
  open->second.bytes += bytes;
  return open->second.pieces.size() == pieces_;
}

void SnapshotProgress::sealed(SnapshotId snapshot) {
  open_.erase(snapshot);
  remember(sealed_, snapshot);
}

bool SnapshotProgress::failed(SnapshotId snapshot) {
  open_.erase(snapshot);
  if (failed_.contains(snapshot)) return false;
  remember(failed_, snapshot);
  return true;
}

bool SnapshotProgress::forget(SnapshotId snapshot) {
  if (!sealed_.contains(snapshot)) return failed(snapshot);
  remember(forgotten_, snapshot);
  return false;
}

std::int64_t SnapshotProgress::bytes(SnapshotId snapshot) const {
  const auto open = open_.find(snapshot);
  return open == open_.end() ? 0 : open->second.bytes;
}

}  // namespace poseidon
