#pragma once

// A store's RocksDB database as files: its settings, opening it, and making a new one from what is
// whole of a damaged one.
//
// Used by server/store/rocksdb_chunk_store.cc.

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

/// Where the parts of a store lie.
struct StorePaths {
  explicit StorePaths(std::filesystem::path directory);

  std::filesystem::path directory, lock, db, unsealed, rescue;
};

/// Settings for large values written and read once. `env` outlives whoever uses them.
rocksdb::Options store_options(rocksdb::Env* env);
/// Whether files in `folder` can be read and written past the kernel's cache
/// (options.use_direct_reads says it to the others here): it costs half the CPU time and none of
/// the memory.
bool has_direct_io(const rocksdb::Options& options, const std::filesystem::path& folder);
/// For writing table files outside of the database.
rocksdb::EnvOptions table_file_options(const rocksdb::Options& options);

/// The status in our words: RESOURCE_EXHAUSTED for a full disk, DATA_LOSS for damaged files, else
/// UNAVAILABLE; `where` and `what` begin its message.
absl::Status store_status(const rocksdb::Status& status, const std::filesystem::path& where,
                          const std::string& what);

/// Takes table files in, all or none, durably. `files` are gone afterwards.
rocksdb::Status ingest(rocksdb::DB& db, const std::vector<std::string>& files);
/// Takes all files of a snapshot out, durably, and deletes them.
rocksdb::Status remove_files(rocksdb::DB& db, SnapshotId snapshot);

/// Snapshots of which the database has an index. Reads no table file.
std::vector<SnapshotId> sealed_snapshots(rocksdb::DB& db);

/// Opens the database, whatever state it is in; under the store's lock. Logs what was lost.
absl::StatusOr<std::unique_ptr<rocksdb::DB>> open_database(const StorePaths& paths,
                                                           const rocksdb::Options& options);

}  // namespace poseidon
