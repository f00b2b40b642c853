#pragma once

// Chunks in RocksDB, in the server's data directory. Only this file, rocksdb_files.h and tests with
// a failing file system include RocksDB.
//
// Called by: server/store/checkpoint_keeper.h, through server/store/chunk_store.h; server/main.cc
// opens it. Calls: server/store/rocksdb_files.h.
//
// Large values that are written once and read once do not need RocksDB's log, memtable or
// compaction. Pieces go straight into table files beside the database, in the order in which they
// come (snapshot_index.h); sealing writes the index, and one atomic, synced entry of the manifest
// takes all files in. Removing a snapshot removes its files, which frees the disk at once. So every
// byte is written once, a crash leaves a snapshot whole or not at all, and a full disk is detected
// outside the database.
//
//   directory/LOCK          held while the store is open
//   directory/db/           the database
//   directory/unsealed/     table files of snapshots in the making; emptied when the store opens
//   directory/rescue/       a damaged database while its whole files are taken into a new one
//   directory/damaged-N/    the rest of a damaged database, for people to inspect and remove
//
// Memory: per snapshot in the making twice its largest array and 1 MiB; besides some 4 MiB, and 40
// bytes per piece of a snapshot that was read, and the piece read last with the next two.
//
// A damaged database: readable table files are served, and requests for the rest get DATA_LOSS.
// When RocksDB cannot read its manifest, or does not know a table file, the store creates a new
// database from the intact table files and logs a warning.

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
