#include "coordinator/job/checkpoints/epoch_source.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

/// By ServerIndex; "" where a store is not here. Nothing when a piece is in none that is.
std::optional<std::vector<std::string>> addresses_of_stores(const CheckpointManifest& manifest,
                                                            const std::vector<NodeInfo>& members) {
  std::vector<std::string> addresses;
  std::vector<bool> here;
  for (const std::string& store : manifest.stores) {
    addresses.push_back(store_address(members, store));
    here.push_back(!addresses.back().empty());
  }
  if (!is_reachable(manifest, here)) return std::nullopt;
  return addresses;
}

std::string missing_of(const CheckpointManifest& manifest, const std::vector<NodeInfo>& members) {
  return missing_stores(manifest, [&members](const std::string& identity) {
    return !store_address(members, identity).empty();
  });
}

}  // namespace

const CheckpointManifest& EpochSource::begin_at(SnapshotId snapshot) {
  const auto& committed = checkpoints_.committed();
  const auto found = committed.find(snapshot);
  POSEIDON_CHECK(found != committed.end(), "the source is one of the checkpoints given");
  manifest_ = found->second;
  for (const auto& [other, manifest] : committed) {
    if (other != snapshot) checkpoints_.abandon(other);
  }
  return *manifest_;
}

std::string EpochSource::text() const {
  return manifest_ ? absl::StrCat("checkpoint ", snapshot_name(manifest_->snapshot))
                   : "the beginning";
}

bool EpochSource::locate(const std::vector<NodeInfo>& members) {
  if (!manifest_) return true;
  std::optional<std::vector<std::string>> addresses = addresses_of_stores(*manifest_, members);
  if (!addresses) return false;
  addresses_ = *std::move(addresses);
  return true;
}

bool EpochSource::is_here(const std::vector<NodeInfo>& members) const {
  return !manifest_ || (addresses_of_stores(*manifest_, members) &&
                        checkpoints_.committed().contains(manifest_->snapshot));
}

std::string EpochSource::missing_text(const std::vector<NodeInfo>& members) const {
  return manifest_ ? missing_of(*manifest_, members) : "";
}

std::vector<const CheckpointManifest*> EpochSource::usable(std::optional<Iteration> told) const {
  std::vector<const CheckpointManifest*> reported, unreported;
  for (const auto& [snapshot, manifest] : checkpoints_.committed()) {
    if (!checkpoints_.is_usable(snapshot)) continue;
    const bool is_reported = !told || manifest.iteration() <= *told;
    (is_reported ? reported : unreported).push_back(&manifest);
  }
  const bool takes_unreported = lines_are_lost_ && reported.empty() && !unreported.empty() &&
                                unreported.back()->iteration() > checkpoint_every_;
  return takes_unreported ? unreported : reported;
}

bool EpochSource::choose(const std::vector<NodeInfo>& members, std::optional<Iteration> told,
                         bool in_time, std::string& missing) {
  manifest_.reset();
  addresses_.clear();
  std::vector<const CheckpointManifest*> usable = this->usable(told);
  if (usable.empty() && !checkpoints_.any_unreadable()) return true;
  for (; !usable.empty(); usable.pop_back()) {
    const CheckpointManifest& manifest = *usable.back();
    if (std::optional<std::vector<std::string>> addresses =
            addresses_of_stores(manifest, members)) {
      manifest_ = manifest;
      addresses_ = *std::move(addresses);
      checkpoints_.need(manifest_->snapshot);
      return true;
    }
    if (missing.empty() || !in_time) {
      absl::StrAppend(&missing, missing.empty() ? "" : ", ", missing_of(manifest, members));
    }
    if (in_time) return false;
  }
  if (missing.empty()) missing = "a checkpoint that can be read";
  return false;
}

}  // namespace poseidon
