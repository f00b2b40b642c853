#pragma once

// The committed checkpoint that a job resumes from, and the stores that have its pieces. Pure
// except for the requests it creates.
//
// Called by: the coordinator, which puts it into an assignment; servers, which restore their
// chunks, and workers, which restore their own state. Calls: common/checkpoint/store_client.h
// carries out the requests.

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
  std::vector<std::string> addresses;  ///< by ServerIndex of the pieces; "": not connected
  std::vector<CheckpointPiece> pieces;

  Iteration iteration() const { return snapshot_iteration(snapshot); }
};

/// `addresses`: of the manifest's stores, the current ones; "" for one that is not connected.
v1::RestoreSource restore_to_message(const CheckpointManifest& manifest,
                                     const std::vector<std::string>& addresses);
/// Checks everything. INVALID_ARGUMENT for holders without address, negative ranges.
absl::StatusOr<RestoreSource> restore_from_message(const v1::RestoreSource& message);

/// Takes `values` (float32) for elements [offset, ...) of the wanted range, in slot 0 (parameters),
/// 1 or 2 (optimizer). Called on the loop.
using TakeRange =
    std::function<absl::Status(std::uint32_t slot, std::int64_t offset, const Bytes& values)>;

/// Appends the requests that fetch a range of a layer, with its optimizer slots: from each piece's
/// holder, and from the second one when the holder lacks it. DATA_LOSS when the checkpoint has a
/// hole there, UNAVAILABLE when none of a piece's stores is connected. `pieces`: of `source`.
absl::Status append_range_requests(const RestoreSource& source, const PieceIndex& pieces,
                                   LayerIndex layer, std::int64_t offset, std::int64_t elements,
                                   int state_slots, const TakeRange& take,
                                   std::vector<StoreRequest>& requests);
/// The same for worker 0's own state.
absl::Status append_own_state_request(const RestoreSource& source,
                                      std::function<absl::Status(const Bytes&)> take,
                                      std::vector<StoreRequest>& requests);

}  // namespace poseidon
