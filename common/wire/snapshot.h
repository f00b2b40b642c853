#pragma once

// Names of checkpoints: a snapshot is one consistent iteration of one epoch, a piece a part of it
// that one server keeps. Pure.
//
// Before: an epoch and an iteration that is saved. After: stores, manifests and messages name it by
// one number, people by two.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/ids.h"

namespace poseidon {

/// Names one checkpoint in every server's store; grows with epoch and iteration.
using SnapshotId = StrongId<struct SnapshotIdTag, std::uint64_t>;

/// Iterations that fit beside an epoch in a SnapshotId; jobs are refused beyond (common/job/job.h
/// bounds them far below).
inline constexpr int kSnapshotIterationBits = 40;
/// Epochs are below it.
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
  kFailed,   ///< nor will a later one be, as far as is known: the disk, the network
  kTooLate,  ///< training was beyond the iteration when it was asked for
  kBusy,     ///< earlier ones took up all room: a later one may find some
};

}  // namespace poseidon
