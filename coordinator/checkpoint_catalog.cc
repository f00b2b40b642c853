#include "coordinator/checkpoint_catalog.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text.h"

namespace poseidon {
namespace {

/// Ids named in an error.
constexpr std::size_t kMaxNamed = 8;

}  // namespace

void CheckpointCatalog::add(CheckpointManifest manifest) {
  const SnapshotId snapshot = manifest.snapshot;
  all_.insert_or_assign(snapshot, std::move(manifest));
}

std::vector<CheckpointManifest> CheckpointCatalog::of_job(const std::string& job_id) const {
  std::vector<CheckpointManifest> found;
  for (const auto& [snapshot, manifest] : all_) {
    if (manifest.job_id == job_id) found.push_back(manifest);
  }
  return found;
}

absl::StatusOr<const CheckpointManifest*> CheckpointCatalog::find(std::string_view id) const {
  const std::optional<SnapshotId> snapshot = parse_snapshot_name(id);
  if (!id.empty() && !snapshot) {
    return absl::InvalidArgumentError(
        str_cat("checkpoint \"", id,
                "\" is no id: give one as `poseidon checkpoint list` prints it, like 12-400"));
  }
  if (all_.empty()) {
    return absl::FailedPreconditionError(
        "there is no committed checkpoint: set checkpoint.every_iterations in the job, or ask a "
        "running one for it with `poseidon checkpoint save`");
  }
  if (!snapshot) return &all_.rbegin()->second;
  const auto found = all_.find(*snapshot);
  if (found != all_.end()) return &found->second;
  std::vector<std::string> known;
  for (auto it = all_.rbegin(); it != all_.rend() && known.size() < kMaxNamed; ++it) {
    known.push_back(snapshot_name(it->first));
  }
  return absl::NotFoundError(str_cat("there is no committed checkpoint ", id, "; the newest are ",
                                     absl::StrJoin(known, ", "),
                                     " (`poseidon checkpoint list` shows all)"));
}

void CheckpointCatalog::hold(SnapshotId snapshot, Nanoseconds now) {
  held_until_[snapshot] = now + kCheckpointHold;
}

bool CheckpointCatalog::remove(const CheckpointManifest& manifest, Nanoseconds now) {
  const auto held = held_until_.find(manifest.snapshot);
  if (held != held_until_.end() && now < held->second) {
    waiting_.insert_or_assign(manifest.snapshot, manifest);
    return false;
  }
  all_.erase(manifest.snapshot);
  held_until_.erase(manifest.snapshot);
  return true;
}

std::vector<CheckpointManifest> CheckpointCatalog::take_due(Nanoseconds now) {
  std::erase_if(held_until_, [now](const auto& held) { return now >= held.second; });
  std::vector<CheckpointManifest> due;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (held_until_.contains(it->first)) {
      ++it;
      continue;
    }
    all_.erase(it->first);
    due.push_back(std::move(it->second));
    it = waiting_.erase(it);
  }
  return due;
}

}  // namespace poseidon
