#pragma once

// Chunks in RocksDB, in the server's data directory. This and rocksdb_files.h are the only files
// that include RocksDB (and tests that make its file system fail).
//
// Large values written once and read once do not want what RocksDB does for small ones: no log, no
// memtable, no compaction. Pieces go straight into table files beside the database, in the order in
// which they come (snapshot_index.h); sealing writes the index, and one atomic, synced entry of the
// manifest takes all files in. Removing a snapshot takes its files out, which gives the disk back
// at once. So every byte is written once, a crash leaves a snapshot whole or not at all, and a full
// disk is met outside of the database.
//
//   directory/LOCK          held while the store is open
//   directory/db/           the database
//   directory/unsealed/     table files of snapshots in the making; emptied when the store opens
//   directory/rescue/       a damaged database while its whole files are taken into a new one
//   directory/damaged-N/    what was left of that: for people to look at, and to remove
//
// Memory: per snapshot in the making twice its largest array and 1 MiB; besides some 4 MiB, and 40
// bytes per piece of a snapshot that was read, and the piece read last with the next two.
//
// A damaged database: whatever table file can be read is served, the rest is DATA_LOSS when it is
// asked for. When RocksDB cannot make sense of its own manifest, or does not know of a table file,
// a new one is made from the table files that are whole, with a warning.

#include <cstdint>
#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "server/store/chunk_store.h"

namespace rocksdb {
class FileSystem;
}

namespace poseidon {

struct RocksdbStoreOptions {
  /// Null: the real one. For tests that make the disk fail.
  std::shared_ptr<rocksdb::FileSystem> file_system;
  /// Bytes after which a table file is synced and the next begun.
  std::uint64_t table_file_bytes = std::uint64_t{64} << 20;
};

/// Opens or creates the store; logs what a damaged one lost. UNAVAILABLE when another process has
/// it open or the directory cannot be written to, RESOURCE_EXHAUSTED when the disk is full;
/// messages name the directory and the remedy.
absl::StatusOr<std::unique_ptr<ChunkStore>> open_rocksdb_chunk_store(
    const std::filesystem::path& directory, RocksdbStoreOptions options = {});

}  // namespace poseidon
