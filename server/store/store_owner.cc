#include "server/store/store_owner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/checkpoint/checkpoint.h"
#include "common/files/file_io.h"

namespace poseidon {

std::vector<SnapshotId> StoreOwner::unwanted(const WantedSnapshots& wanted,
                                             const std::vector<SnapshotId>& sealed, Epoch making) {
  connected_ = wanted.identity;
  if (connected_.empty()) return {};
  std::vector<SnapshotId> rest;
  for (const SnapshotId snapshot : sealed) {
    if (!wanted.snapshots.contains(snapshot)) rest.push_back(snapshot);
  }
  if (rest.empty()) owner_ = connected_;
  if (owner_ != connected_) return {};
  std::erase_if(rest, [&](SnapshotId snapshot) {
    const Epoch epoch = snapshot_epoch(snapshot);
    return epoch == making || (wanted.epoch != Epoch(0) && epoch >= wanted.epoch);
  });
  return rest;
}

bool StoreOwner::begin_epoch() {
  if (owner_ == connected_ || owner_ == kNobody) return false;
  owner_ = kNobody;
  return true;
}

absl::StatusOr<std::string> read_store_owner(const std::filesystem::path& file) {
  const absl::StatusOr<std::string> text = read_file(file, 1024);
  if (absl::IsNotFound(text.status())) return "";
  POSEIDON_RETURN_IF_ERROR(text.status());
  const std::string owner(absl::StripSuffix(*text, "\n"));
  if (is_store_identity(owner) || owner == StoreOwner::kNobody) return owner;
  return absl::DataLossError(
      absl::StrCat(file.string(), " does not name the coordinator that the checkpoints belong to"));
}

}  // namespace poseidon
