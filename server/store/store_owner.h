#pragma once

// Tracks which coordinator owns the checkpoints in a store, and so which unknown ones may be
// removed. Pure except for the file that stores the owner.
//
// Called by: server/store/checkpoint_keeper.h, when the coordinator sends KeepCheckpoints; it then
// removes snapshots. Calls: common/files/file_io.h.
//
// Invariant: nothing is removed unless every snapshot in the store was made for the coordinator
// that asks. A coordinator becomes the owner when it wants every snapshot in the store (so also of
// an empty store). When another coordinator runs a job on it, the store has no owner any more.

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/wire/snapshot.h"

namespace poseidon {

/// The snapshots that a coordinator wants from a store.
struct WantedSnapshots {
  std::string identity;  ///< of the coordinator's state directory; "": its list may be incomplete
  std::set<SnapshotId> snapshots;
  Epoch epoch;  ///< of its job, whose snapshots are in progress, like later ones'; 0: no job
};

class StoreOwner {
 public:
  /// `owner` as stored: an identity, kNobody, or "" for none.
  explicit StoreOwner(std::string owner = "") : owner_(std::move(owner)) {}

  /// Which of the `sealed` snapshots may be removed. `making`: this server's epoch, or 0. May
  /// change owner().
  std::vector<SnapshotId> unwanted(const WantedSnapshots& wanted,
                                   const std::vector<SnapshotId>& sealed, Epoch making);
  /// New snapshots for the connected coordinator will follow. Returns whether owner() has changed.
  bool begin_epoch();

  const std::string& owner() const { return owner_; }

  /// The owner of a store with snapshots of several coordinators.
  static constexpr const char* kNobody = "nobody";

 private:
  std::string owner_;
  std::string connected_;  ///< identity of the connected coordinator
};

/// Reads the owner from the file in the store's directory. "" when it is missing; DATA_LOSS names
/// it.
absl::StatusOr<std::string> read_store_owner(const std::filesystem::path& file);

}  // namespace poseidon
