#pragma once

// A store's RocksDB database as files: its settings, opening it, and creating a new one from the
// intact files of a damaged one.
//
// Called by: server/store/rocksdb_chunk_store.cc. Calls: RocksDB.

#include <rocksdb/db.h>
#include <rocksdb/options.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/snapshot.h"

namespace poseidon {

/// The paths of a store's parts.
struct StorePaths {
  explicit StorePaths(std::filesystem::path directory);

  std::filesystem::path directory, lock, db, unsealed, rescue;
};

/// Settings for large values written and read once. `env` must outlive their users.
rocksdb::Options store_options(rocksdb::Env* env);
/// Whether files in `folder` can be read and written past the kernel's cache
/// (options.use_direct_reads passes the answer on): that takes half the CPU time and no cache
/// memory.
bool has_direct_io(const rocksdb::Options& options, const std::filesystem::path& folder);
/// For writing table files outside of the database.
rocksdb::EnvOptions table_file_options(const rocksdb::Options& options);

/// Converts a status: RESOURCE_EXHAUSTED for a full disk, DATA_LOSS for damaged files, else
/// UNAVAILABLE; `where` and `what` begin its message.
absl::Status store_status(const rocksdb::Status& status, const std::filesystem::path& where,
                          const std::string& what);

/// Ingests table files durably, all or none; it moves `files`.
rocksdb::Status ingest(rocksdb::DB& db, const std::vector<std::string>& files);
/// Removes all files of a snapshot, durably.
rocksdb::Status remove_files(rocksdb::DB& db, SnapshotId snapshot);

/// Snapshots whose index is in the database. Reads no table file.
std::vector<SnapshotId> sealed_snapshots(rocksdb::DB& db);

/// Opens the database in any state, under the store's lock. Logs losses.
absl::StatusOr<std::unique_ptr<rocksdb::DB>> open_database(const StorePaths& paths,
                                                           const rocksdb::Options& options);

}  // namespace poseidon
