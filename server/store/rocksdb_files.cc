#include "server/store/rocksdb_files.h"

#include <rocksdb/convenience.h>
#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/file_io.h"
#include "server/store/snapshot_index.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTableExtension = ".sst";
/// Folders of damaged files that are kept; then the oldest name is used again.
constexpr int kMaxDamagedFolders = 8;
/// The kernel begins to write a table file after so much of it: the sync at its end is short.
constexpr std::uint64_t kBytesPerSync = std::uint64_t{4} << 20;
/// Size of one direct write.
constexpr std::size_t kDirectWriteBytes = std::size_t{4} << 20;

/// Errors where there is no telling: a folder that may not be read, a link to itself.
absl::StatusOr<bool> file_exists(const fs::path& path) {
  std::error_code error;
  const bool is_there = fs::exists(path, error);
  if (error) return system_error(path, "cannot be inspected", error.value());
  return is_there;
}

std::vector<fs::path> table_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == kTableExtension) files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<rocksdb::LiveFileMetaData> live_files(rocksdb::DB& db) {
  std::vector<rocksdb::LiveFileMetaData> files;
  db.GetLiveFilesMetaData(&files);
  return files;
}

/// Damage, as opposed to a disk that is full, read-only or broken.
bool is_damage(const rocksdb::Status& status) {
  return status.IsCorruption() || status.IsNotFound() || status.IsPathNotFound() ||
         status.IsInvalidArgument() || status.IsNotSupported() || status.IsIncomplete() ||
         status.IsColumnFamilyDropped();
}

/// Why the database must be rebuilt from its table files; "" when it is intact. RocksDB removes
/// table files of which its manifest does not know: so we look before it opens them for writing.
absl::StatusOr<std::string> find_damage(const StorePaths& paths, const rocksdb::Options& options) {
  const std::vector<fs::path> on_disk = table_files(paths.db);
  POSEIDON_ASSIGN_OR_RETURN(const bool is_there, file_exists(paths.db / "CURRENT"));
  if (!is_there) {
    return on_disk.empty() ? std::string() : std::string("its file CURRENT is missing");
  }
  rocksdb::DB* raw = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::OpenForReadOnly(options, paths.db.string(), &raw, /*error_if_wal_exists=*/false);
  const std::unique_ptr<rocksdb::DB> db(raw);
  if (is_damage(status)) return status.ToString();
  POSEIDON_RETURN_IF_ERROR(store_status(status, paths.directory, "looking into the store"));
  std::set<std::string> known;
  for (const auto& file : live_files(*db)) known.insert(fs::path(file.name).filename().string());
  for (const fs::path& file : on_disk) {
    if (!known.contains(file.filename().string())) {
      return absl::StrCat("its manifest does not know of ", file.filename().string());
    }
  }
  return std::string();
}

/// A manifest that lost its end may name a snapshot that was removed; and without its index no
/// snapshot can be read.
absl::Status drop_snapshots_without_index(const StorePaths& paths, rocksdb::DB& db) {
  for (const auto& file : live_files(db)) {
    const std::optional<ArrayKey> key = decode_key(file.smallestkey);
    // Not file.name: RocksDB tries an old extension where the file is missing.
    POSEIDON_ASSIGN_OR_RETURN(const bool there,
                              file_exists(paths.db / fs::path(file.relative_filename).filename()));
    if (!key || key->number != kIndexNumber || there) continue;
    spdlog::error(
        "{}: the index of checkpoint {} is missing; the rest of that checkpoint is removed",
        paths.directory.string(), snapshot_name(key->snapshot));
    POSEIDON_RETURN_IF_ERROR(
        store_status(remove_files(db, key->snapshot), paths.directory, "removing a checkpoint"));
  }
  return absl::OkStatus();
}

struct TableFile {
  std::string path;
  bool has_index = false;
};

/// The snapshot that a table file belongs to; nothing when the file is damaged.
std::optional<ArrayKey> first_key(const fs::path& file, const rocksdb::Options& options) {
  rocksdb::SstFileReader reader(options);
  if (!reader.Open(file.string()).ok()) return std::nullopt;
  const std::unique_ptr<rocksdb::Iterator> at(reader.NewIterator(rocksdb::ReadOptions()));
  at->SeekToFirst();
  if (!at->Valid()) return std::nullopt;
  return decode_key(at->key().ToStringView());
}

fs::path free_damaged_folder(const StorePaths& paths) {
  std::error_code error;
  for (int i = 1; i < kMaxDamagedFolders; ++i) {
    fs::path folder = paths.directory / absl::StrCat("damaged-", i);
    if (!fs::exists(folder, error)) return folder;
  }
  fs::path last = paths.directory / absl::StrCat("damaged-", kMaxDamagedFolders);
  fs::remove_all(last, error);
  return last;
}

/// Adds the intact files of the rescue folder to `db`. May be cut off and begun again.
absl::Status rescue(const StorePaths& paths, const rocksdb::Options& options, rocksdb::DB& db) {
  std::map<SnapshotId, std::vector<TableFile>> snapshots;
  std::size_t damaged = 0;
  for (const fs::path& file : table_files(paths.rescue)) {
    const std::optional<ArrayKey> key = first_key(file, options);
    if (key) {
      snapshots[key->snapshot].push_back({file.string(), key->number == kIndexNumber});
    } else {
      ++damaged;
    }
  }
  std::set<SnapshotId> rescued;
  for (const SnapshotId snapshot : sealed_snapshots(db)) rescued.insert(snapshot);
  for (const auto& [snapshot, files] : snapshots) {
    const bool sealed =
        std::any_of(files.begin(), files.end(), [](const TableFile& f) { return f.has_index; });
    if (!sealed || rescued.contains(snapshot)) continue;
    std::vector<std::string> names;
    for (const TableFile& file : files) names.push_back(file.path);
    const rocksdb::Status status = ingest(db, names);
    if (status.ok()) {
      rescued.insert(snapshot);
    } else if (is_damage(status)) {
      // A file that opens and yet is not whole; which one, only RocksDB knows. Leave the snapshot.
      spdlog::error("{}: checkpoint {} cannot be rescued: {}", paths.directory.string(),
                    snapshot_name(snapshot), status.ToString());
      damaged += files.size();
      continue;
    } else {
      return store_status(status, paths.directory, "moving the intact files of a damaged store");
    }
  }
  std::error_code error;
  for (const auto& [snapshot, files] : snapshots) {
    const bool sealed =
        std::any_of(files.begin(), files.end(), [](const TableFile& f) { return f.has_index; });
    if (sealed && !rescued.contains(snapshot)) continue;  // kept for people
    for (const TableFile& file : files) fs::remove(file.path, error);
  }
  std::string names;
  for (const SnapshotId snapshot : rescued) absl::StrAppend(&names, " ", snapshot_name(snapshot));
  spdlog::warn("{}: checkpoints after the rescue:{}", paths.directory.string(),
               names.empty() ? " none" : names);
  if (damaged == 0) {
    fs::remove_all(paths.rescue, error);
    return absl::OkStatus();
  }
  const fs::path kept = free_damaged_folder(paths);
  fs::rename(paths.rescue, kept, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat(paths.rescue.string(), ": cannot be renamed: ", error.message()));
  }
  spdlog::error(
      "{}: {} damaged files are kept in {}; pieces in them are lost here. Remove that folder when "
      "you do not need it, and check the disk (smartctl, dmesg)",
      paths.directory.string(), damaged, kept.string());
  return absl::OkStatus();
}

}  // namespace

StorePaths::StorePaths(std::filesystem::path in)
    : directory(std::move(in)),
      lock(directory / "LOCK"),
      db(directory / "db"),
      unsealed(directory / "unsealed"),
      rescue(directory / "rescue") {}

namespace {

/// A write that failed costs its snapshot, and the next one is tried as if nothing had been, with a
/// new manifest; there are no memtables or logs whose state could be in doubt. RocksDB shall not
/// stop the database: 7.8 starts it again by halves, with DB::Resume as by itself
/// (ErrorHandler::ClearBGError leaves is_db_stopped_), so that the next file to be taken in gets
/// the number 0, which ends the process.
class NeverStopped final : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason /*reason*/,
                         rocksdb::Status* error) override {
    using Severity = rocksdb::Status::Severity;
    // RocksDB itself retries errors without a severity, and restarts the database correctly.
    const bool is_ours =
        error->severity() > Severity::kNoError && error->severity() < Severity::kUnrecoverableError;
    if (is_ours) *error = rocksdb::Status::OK();
  }
};

}  // namespace

rocksdb::Options store_options(rocksdb::Env* env) {
  rocksdb::Options options;
  options.env = env;
  options.listeners.push_back(std::make_shared<NeverStopped>());
  options.create_if_missing = true;
  // A damaged table file must not keep the others from being read; checksums are always verified.
  options.paranoid_checks = false;
  options.compression = rocksdb::kNoCompression;  // float noise does not compress
  options.disable_auto_compactions = true;        // there is nothing to merge
  options.ttl = 0;
  options.write_buffer_size = 1 << 20;  // nothing goes through memtables
  options.max_open_files = 256;         // bounds the memory for their indexes
  options.max_manifest_file_size = 4 << 20;
  options.bytes_per_sync = kBytesPerSync;
  options.advise_random_on_open = false;
  options.skip_stats_update_on_db_open = true;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.max_log_file_size = 1 << 20;
  options.keep_log_file_num = 2;
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;      // values are read once
  table.checksum = rocksdb::kXXH3;  // several times as fast as CRC32 where that is compiled for
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));  // any x86-64
  return options;
}

bool has_direct_io(const rocksdb::Options& options, const std::filesystem::path& folder) {
  const std::string probe = (folder / "probe").string();
  rocksdb::EnvOptions direct(options);
  direct.use_direct_writes = true;
  std::unique_ptr<rocksdb::WritableFile> file;
  const bool works = options.env->NewWritableFile(probe, &file, direct).ok();
  file.reset();
  (void)options.env->DeleteFile(probe);
  return works;
}

rocksdb::EnvOptions table_file_options(const rocksdb::Options& options) {
  rocksdb::EnvOptions file(options);
  file.use_direct_writes = options.use_direct_reads;
  if (file.use_direct_writes) file.writable_file_max_buffer_size = kDirectWriteBytes;
  return file;
}

absl::Status store_status(const rocksdb::Status& status, const std::filesystem::path& where,
                          const std::string& what) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(where.string(), ": ", what, ": ", status.ToString());
  if (status.IsNoSpace()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(message, "; make room there, or keep fewer checkpoints (checkpoint.keep)"));
  }
  if (is_damage(status)) return absl::DataLossError(message);
  return absl::UnavailableError(message);
}

rocksdb::Status ingest(rocksdb::DB& db, const std::vector<std::string>& files) {
  rocksdb::IngestExternalFileOptions how;
  how.move_files = true;
  how.snapshot_consistency = false;
  how.write_global_seqno = false;  // the files stay as they were synced
  return db.IngestExternalFile(files, how);
}

rocksdb::Status remove_files(rocksdb::DB& db, SnapshotId snapshot) {
  const std::string begin = encode_key({snapshot, kIndexNumber});
  const std::string end = encode_key({snapshot.next(), kIndexNumber});
  const rocksdb::Slice from(begin), to(end);
  return rocksdb::DeleteFilesInRange(&db, db.DefaultColumnFamily(), &from, &to,
                                     /*include_end=*/false);
}

std::vector<SnapshotId> sealed_snapshots(rocksdb::DB& db) {
  std::vector<SnapshotId> snapshots;
  for (const auto& file : live_files(db)) {
    const std::optional<ArrayKey> key = decode_key(file.smallestkey);
    if (key && key->number == kIndexNumber) snapshots.push_back(key->snapshot);
  }
  std::sort(snapshots.begin(), snapshots.end());
  return snapshots;
}

/// Each start begins a log, which nothing goes through, and RocksDB gives none up before something
/// has.
void remove_empty_logs(const fs::path& db) {
  std::vector<fs::path> empty;
  std::error_code error;
  for (fs::directory_iterator at(db, error), end; !error && at != end; at.increment(error)) {
    std::error_code unknown;
    if (at->path().extension() == ".log" && at->file_size(unknown) == 0)
      empty.push_back(at->path());
  }
  for (const fs::path& log : empty) fs::remove(log, error);
}

absl::StatusOr<std::unique_ptr<rocksdb::DB>> open_database(const StorePaths& paths,
                                                           const rocksdb::Options& options) {
  std::error_code error;
  POSEIDON_ASSIGN_OR_RETURN(const bool was_interrupted, file_exists(paths.rescue));
  if (!was_interrupted) {
    POSEIDON_ASSIGN_OR_RETURN(const std::string damage, find_damage(paths, options));
    if (!damage.empty()) {
      spdlog::error("{}: the store is damaged ({}); its intact files are moved to a new one",
                    paths.directory.string(), damage);
      fs::rename(paths.db, paths.rescue, error);
      if (error) {
        return absl::UnavailableError(
            absl::StrCat(paths.db.string(), ": cannot be renamed: ", error.message()));
      }
    }
  }
  remove_empty_logs(paths.db);
  rocksdb::DB* raw = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options, paths.db.string(), &raw);
  std::unique_ptr<rocksdb::DB> db(raw);
  POSEIDON_RETURN_IF_ERROR(store_status(status, paths.directory, "opening the checkpoint store"));
  POSEIDON_ASSIGN_OR_RETURN(const bool is_to_rescue, file_exists(paths.rescue));
  if (is_to_rescue) POSEIDON_RETURN_IF_ERROR(rescue(paths, options, *db));
  POSEIDON_RETURN_IF_ERROR(drop_snapshots_without_index(paths, *db));
  return db;
}

}  // namespace poseidon
