#pragma once

// The storage seam: where a server keeps frozen chunks. rocksdb_chunk_store.h is the real one,
// memory_chunk_store.h its twin; both pass chunk_store_test.cc.
//
// Called by: server/store/checkpoint_keeper.h, on the disk thread only: puts chunks and pieces,
// seals, and reads pieces for nodes that restore. Calls: files in --data-dir.
//
// Invariants
//  1. A snapshot (one consistent iteration of a shard) is read only after it was sealed, and
//     sealing is its last write. A snapshot that a crash left unsealed is never read.
//  2. A read returns the bytes that were put, or an error: every record carries a checksum.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/wire/snapshot.h"

namespace poseidon {

/// One chunk to store; refers to the caller's memory. state0 and state1 are the optimizer's slots,
/// empty where it uses none.
struct ChunkView {
  PieceId piece;
  Iteration version = 0;
  std::span<const float> parameters, state0, state1;
};

/// One chunk read back.
struct StoredChunk {
  PieceId piece;
  Iteration version = 0;
  std::vector<float> parameters, state0, state1;
};

/// Figures of a store, for metrics. 0: unknown.
struct StoreFigures {
  std::int64_t snapshots = 0;     ///< sealed
  std::int64_t bytes = 0;         ///< of its files
  std::int64_t files = 0;         ///< that hold pieces
  std::int64_t memory_bytes = 0;  ///< to read them
  std::int64_t errors = 0;        ///< of the database's background work
};

/// One thread at a time per store; calls block on the disk and belong on a background thread.
class ChunkStore {
 public:
  virtual ~ChunkStore() = default;
  /// Writes one chunk of a snapshot that is not sealed yet (FAILED_PRECONDITION otherwise). Putting
  /// the same chunk again replaces it. RESOURCE_EXHAUSTED when the disk is full; sealed snapshots
  /// are untouched by any error.
  virtual absl::Status put(SnapshotId snapshot, const ChunkView& chunk) = 0;
  /// Makes the snapshot durable and readable. Once it returns OK, a power cut loses nothing of it.
  virtual absl::Status seal(SnapshotId snapshot) = 0;
  /// NOT_FOUND: not sealed, or no such chunk. DATA_LOSS: the bytes do not match their checksum.
  virtual absl::StatusOr<StoredChunk> get(SnapshotId snapshot, PieceId piece) = 0;
  /// Sealed snapshots, oldest first.
  virtual absl::StatusOr<std::vector<SnapshotId>> list() = 0;
  /// Removes a snapshot, sealed or not; removing a missing one is not an error.
  virtual absl::Status remove(SnapshotId snapshot) = 0;
  virtual StoreFigures figures() = 0;
};

}  // namespace poseidon
