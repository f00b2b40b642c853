#pragma once

// Names of checkpoints: a snapshot is the state at one iteration of one epoch; a piece is a part of
// it that one server keeps. Pure.
//
// Called by: stores, manifests and messages, which name a snapshot by one number; messages for
// people, which name epoch and iteration. Calls: nothing.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/ids.h"

namespace poseidon {

/// Names one checkpoint in every server's store; grows with epoch and iteration.
using SnapshotId = StrongId<struct SnapshotIdTag, std::uint64_t>;

/// Bits of the iteration in a SnapshotId; longer jobs are refused (common/job/job.h bounds them far
/// below).
inline constexpr int kSnapshotIterationBits = 40;
/// Upper bound (exclusive) of epochs.
inline constexpr std::uint64_t kEpochs = std::uint64_t{1} << (64 - kSnapshotIterationBits);
SnapshotId snapshot_id(Epoch epoch, Iteration iteration);
Epoch snapshot_epoch(SnapshotId id);
Iteration snapshot_iteration(SnapshotId id);
/// "12-400": epoch and iteration, for people and file names. The inverse is strict.
std::string snapshot_name(SnapshotId id);
std::optional<SnapshotId> parse_snapshot_name(std::string_view name);

/// Position of a piece in its checkpoint. For PS layers it is the chunk's ChunkId.
using PieceId = StrongId<struct PieceIdTag, std::uint32_t>;

/// Why a node's part of a checkpoint is not stored.
enum class MissingPart {
  kFailed,   ///< later ones will probably fail, too: the disk, the network
  kTooLate,  ///< training had passed the iteration when the request came
  kBusy,     ///< earlier parts took all the space; a later one may succeed
};

}  // namespace poseidon
