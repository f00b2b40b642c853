#pragma once

// Whose checkpoints are in a store, and so which of them may be removed because nobody knows them.
// Pure but for the file that remembers it.
//
// Before: the coordinator said what it wants (KeepCheckpoints). After:
// server/store/checkpoint_keeper.h removes.
//
// Invariant: nothing is removed unless every snapshot in the store was made for the coordinator
// that asks. A store is taken for a coordinator's own once that wants all that is in it (so an
// empty one is); as soon as another one has a job on it, for nobody's.

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/wire/snapshot.h"

namespace poseidon {

/// What a coordinator wants of a store.
struct WantedSnapshots {
  std::string
      identity;  ///< of the coordinator's state directory; "": it does not know all it wants
  std::set<SnapshotId> snapshots;
  Epoch epoch;  ///< of its job: that and later ones are being made; 0: it has none
};

class StoreOwner {
 public:
  /// The owner as it was remembered: an identity, kNobody, or "" where nothing was.
  explicit StoreOwner(std::string owner = "") : owner_(std::move(owner)) {}

  /// Of what is `sealed` in the store, what may be removed. `making`: the epoch that this server is
  /// in, or 0. May change owner().
  std::vector<SnapshotId> unwanted(const WantedSnapshots& wanted,
                                   const std::vector<SnapshotId>& sealed, Epoch making);
  /// Snapshots for the coordinator that spoke last will come. Whether owner() has changed.
  bool begin_epoch();

  const std::string& owner() const { return owner_; }

  /// Of a store with several coordinators' snapshots.
  static constexpr const char* kNobody = "nobody";

 private:
  std::string owner_;
  std::string connected_;  ///< to the coordinator with this identity
};

/// The file of the store's directory. "" when it is not there; DATA_LOSS names it.
absl::StatusOr<std::string> read_store_owner(const std::filesystem::path& file);

}  // namespace poseidon
