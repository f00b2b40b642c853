#pragma once

// Where a job goes on from: a committed checkpoint and the stores that have its pieces. Pure but
// for the requests it makes.
//
// Before: the coordinator's assignment. After: servers fill their chunks, workers what they keep
// themselves, both with common/checkpoint/store_client.h.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/store_client.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

struct RestoreSource {
  SnapshotId snapshot;
  std::uint64_t samples = 0;           ///< that all workers have taken before
  std::vector<std::string> addresses;  ///< HOST:PORT by ServerIndex of the pieces; "": not here
  std::vector<CheckpointPiece> pieces;

  Iteration iteration() const { return snapshot_iteration(snapshot); }
};

/// `addresses`: of the manifest's stores, as they are reached now; "" for one that is not here.
v1::RestoreSource restore_to_message(const CheckpointManifest& manifest,
                                     const std::vector<std::string>& addresses);
/// Trusts nothing; INVALID_ARGUMENT for holders without address, negative ranges.
absl::StatusOr<RestoreSource> restore_from_message(const v1::RestoreSource& message);

/// Takes `values` (float32) for elements [offset, ...) of the wanted range, in slot 0 (parameters),
/// 1 or 2 (optimizer). Called on the loop.
using TakeRange =
    std::function<absl::Status(std::uint32_t slot, std::int64_t offset, const Bytes& values)>;

/// Appends the requests that fetch a range of a layer, with its optimizer slots: from each piece's
/// holder, and where that does not have it, from the second one. DATA_LOSS when the checkpoint has
/// a hole there, UNAVAILABLE when none of a piece's stores is here. `pieces`: of `source`.
absl::Status append_range_requests(const RestoreSource& source, const PieceIndex& pieces,
                                   LayerIndex layer, std::int64_t offset, std::int64_t elements,
                                   int state_slots, const TakeRange& take,
                                   std::vector<StoreRequest>& requests);
/// Appends the request for worker 0's own state; likewise.
absl::Status append_own_state_request(const RestoreSource& source,
                                      std::function<absl::Status(const Bytes&)> take,
                                      std::vector<StoreRequest>& requests);

}  // namespace poseidon
