#pragma once

// The twin of server/store/rocksdb_chunk_store.h for tests and simulations. One thread, as in
// server/store/chunk_store.h. Copies its input.
//
// Called by: tests and simulations. Calls: nothing.

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/store/chunk_store.h"

namespace poseidon {

/// The in-memory twin of the RocksDB store. Loses its content only with the process.
class MemoryChunkStore final : public ChunkStore {
 public:
  absl::Status put(SnapshotId snapshot, const ChunkView& chunk) override {
    if (sealed_.contains(snapshot)) {
      return absl::FailedPreconditionError(
          absl::StrCat("snapshot ", snapshot.value(), " is sealed"));
    }
    const auto copy = [](std::span<const float> floats) {
      return std::vector<float>(floats.begin(), floats.end());
    };
    chunks_[snapshot][chunk.piece] = {chunk.piece, chunk.version, copy(chunk.parameters),
                                      copy(chunk.state0), copy(chunk.state1)};
    return absl::OkStatus();
  }
  absl::Status seal(SnapshotId snapshot) override {
    sealed_.insert(snapshot);
    return absl::OkStatus();
  }
  absl::StatusOr<StoredChunk> get(SnapshotId snapshot, PieceId piece) override {
    const auto chunks = chunks_.find(snapshot);
    if (!sealed_.contains(snapshot) || chunks == chunks_.end() || !chunks->second.contains(piece)) {
      return absl::NotFoundError(
          absl::StrCat("no piece ", piece.value(), " in a sealed snapshot ", snapshot.value()));
    }
    return chunks->second.at(piece);
  }
  absl::StatusOr<std::vector<SnapshotId>> list() override {
    return std::vector<SnapshotId>(sealed_.begin(), sealed_.end());
  }
  absl::Status remove(SnapshotId snapshot) override {
    sealed_.erase(snapshot);
    chunks_.erase(snapshot);
    return absl::OkStatus();
  }
  StoreFigures figures() override {
    return {.snapshots = static_cast<std::int64_t>(sealed_.size())};
  }

 private:
  std::map<SnapshotId, std::map<PieceId, StoredChunk>> chunks_;
  std::set<SnapshotId> sealed_;
};

}  // namespace poseidon
