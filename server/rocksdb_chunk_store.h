#pragma once

// Chunks in RocksDB, in the server's data directory. The only files that include RocksDB.
//
// Keys: "c" + snapshot (8 bytes, big endian) + chunk (4 bytes, big endian) -> a chunk record;
//       "s" + snapshot -> empty, the seal.
// Record, little endian: version (8), three element counts (8 each), the floats of parameters,
// state0 and state1, and the CRC-32 (zlib's) of all before it (4).

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "server/chunk_store.h"

namespace poseidon {

/// Opens or creates the store. UNAVAILABLE when another process has it open, DATA_LOSS when
/// RocksDB finds its files damaged; messages name the directory.
absl::StatusOr<std::unique_ptr<ChunkStore>> open_rocksdb_chunk_store(
    const std::filesystem::path& directory);

}  // namespace poseidon
