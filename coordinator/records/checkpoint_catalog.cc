#include "coordinator/records/checkpoint_catalog.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

/// Ids named in an error.
constexpr std::size_t kMaxNamed = 8;

/// Whether it is this one's manifest that could not be read.
bool speaks_of(const std::string& why, SnapshotId snapshot) {
  return why.find(absl::StrCat("/", snapshot_name(snapshot), ".json")) != std::string::npos;
}

}  // namespace

void CheckpointCatalog::add(CheckpointManifest manifest) {
  const SnapshotId snapshot = manifest.snapshot;
  std::erase_if(unread_, [&](const std::string& why) { return speaks_of(why, snapshot); });
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
  if (snapshot) {
    const auto found = all_.find(*snapshot);
    if (found != all_.end()) return &found->second;
    for (const std::string& why : unread_) {
      if (!speaks_of(why, *snapshot)) continue;
      return absl::DataLossError(str_cat("checkpoint ", id, " cannot be read: ", why));
    }
  }
  if (all_.empty() && !unread_.empty()) {
    return absl::DataLossError(
        absl::StrCat("no committed checkpoint can be read: ", unread_text()));
  }
  if (all_.empty()) {
    return absl::FailedPreconditionError(
        "there is no committed checkpoint: set checkpoint.every_iterations in the job, or ask a "
        "running one for it with `poseidon checkpoint save`");
  }
  if (!snapshot) return &all_.rbegin()->second;
  std::vector<std::string> known;
  for (auto it = all_.rbegin(); it != all_.rend() && known.size() < kMaxNamed; ++it) {
    known.push_back(snapshot_name(it->first));
  }
  return absl::NotFoundError(str_cat("there is no committed checkpoint ", id, "; the newest are ",
                                     absl::StrJoin(known, ", "),
                                     " (`poseidon checkpoint list` shows all)"));
}

std::string CheckpointCatalog::doubt_about_newest() const {
  if (unread_.empty() || all_.empty()) return "";
  return absl::StrCat("checkpoint ", snapshot_name(all_.rbegin()->first),
                      " is the newest that could be read when the coordinator started, but not all "
                      "could: ",
                      unread_text());
}

std::string CheckpointCatalog::unread_text() const {
  const std::string more = unread_.size() > 1
                               ? absl::StrCat(" (and ", unread_.size() - 1,
                                              " more, which `poseidon checkpoint list` names)")
                               : "";
  return absl::StrCat(unread_.front(), more);
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
