#include "server/store/rocksdb_chunk_store.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/sst_file_writer.h>

#include <cstring>
#include <deque>
#include <future>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/file_io.h"
#include "server/store/rocksdb_files.h"
#include "server/store/snapshot_index.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

/// Pieces read before they are asked for: one read alone does not keep a fast disk busy.
constexpr std::size_t kPiecesAhead = 2;
/// For the files that the database writes when it is opened: its log, manifest and options.
constexpr std::uintmax_t kLeastSpace = 64 << 10;

rocksdb::Slice bytes_of(std::span<const float> floats) {
  return {reinterpret_cast<const char*>(floats.data()), floats.size_bytes()};
}

/// Floats at any address, for vector::assign: resize would write zeros first.
class StoredFloats {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = float;
  using difference_type = std::ptrdiff_t;
  using pointer = const float*;
  using reference = float;

  explicit StoredFloats(const char* at) : at_(at) {}
  float operator*() const {
    float value = 0.0f;
    std::memcpy(&value, at_, sizeof value);
    return value;
  }
  StoredFloats& operator++() {
    at_ += sizeof(float);
    return *this;
  }
  bool operator==(const StoredFloats& other) const { return at_ == other.at_; }
  bool operator!=(const StoredFloats& other) const { return at_ != other.at_; }

 private:
  const char* at_;
};

/// An unfinished snapshot: its table files, none of which is in the database yet. Removes them with
/// itself.
class Draft {
 public:
  Draft(SnapshotId snapshot, const StorePaths& paths, const rocksdb::Options& options,
        std::uint64_t file_bytes)
      : snapshot_(snapshot), paths_(paths), options_(options), file_bytes_(file_bytes) {}
  ~Draft() {
    writer_.reset();
    std::error_code error;
    for (const std::string& file : files_) fs::remove(file, error);
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  /// After an error the draft is good for nothing: files that could not be written are not used.
  absl::Status put(const ChunkView& chunk) {
    POSEIDON_RETURN_IF_ERROR(status_);
    IndexEntry entry{.version = chunk.version, .first = next_};
    std::size_t slot = 0;
    for (const auto floats : {chunk.parameters, chunk.state0, chunk.state1}) {
      entry.elements[slot++] = floats.size();
      if (!floats.empty() && status_.ok()) write(next_++, bytes_of(floats));
    }
    if (status_.ok()) index_[chunk.piece] = entry;
    return status_;
  }

  /// Everything is on the disk, the index last. The files to take in.
  absl::StatusOr<std::vector<std::string>> finish() {
    end_file();
    if (status_.ok()) write(kIndexNumber, encode_index(index_));
    end_file();
    POSEIDON_RETURN_IF_ERROR(status_);
    return files_;
  }

  /// What was finished could not be taken in.
  void spoil(const absl::Status& status) { status_ = status; }

  const SnapshotIndex& index() const { return index_; }

 private:
  void write(ArrayNumber number, const rocksdb::Slice& bytes) {
    if (writer_ == nullptr) begin_file();
    if (!status_.ok()) return;
    note(writer_->Put(encode_key({snapshot_, number}), bytes));
    if (status_.ok() && writer_->FileSize() >= file_bytes_) end_file();
  }

  void begin_file() {
    writer_ = std::make_unique<rocksdb::SstFileWriter>(table_file_options(options_), options_);
    files_.push_back(
        (paths_.unsealed / absl::StrCat(snapshot_name(snapshot_), "-", files_.size(), ".sst"))
            .string());
    note(writer_->Open(files_.back()));
  }

  /// Synced.
  void end_file() {
    if (writer_ == nullptr) return;
    if (status_.ok()) note(writer_->Finish());
    writer_.reset();
  }

  void note(const rocksdb::Status& status) {
    if (status_.ok()) {
      status_ = store_status(status, paths_.directory,
                             absl::StrCat("writing checkpoint ", snapshot_name(snapshot_)));
    }
  }

  const SnapshotId snapshot_;
  const StorePaths& paths_;
  const rocksdb::Options& options_;
  const std::uint64_t file_bytes_;
  absl::Status status_;
  SnapshotIndex index_;
  ArrayNumber next_ = kIndexNumber + 1;
  std::vector<std::string> files_;
  std::unique_ptr<rocksdb::SstFileWriter> writer_;  ///< of the last file; null between files
};

class RocksdbChunkStore final : public ChunkStore {
 public:
  RocksdbChunkStore(StorePaths paths, std::unique_ptr<rocksdb::Env> env, std::uint64_t file_bytes)
      : paths_(std::move(paths)),
        file_bytes_(file_bytes),
        env_(std::move(env)),
        options_(store_options(env_.get())) {}
  ~RocksdbChunkStore() override {
    drafts_.clear();
    ahead_.clear();
    db_.reset();
    if (lock_ != nullptr) (void)options_.env->UnlockFile(lock_);
  }
  RocksdbChunkStore(const RocksdbChunkStore&) = delete;
  RocksdbChunkStore& operator=(const RocksdbChunkStore&) = delete;

  absl::Status open() {
    std::error_code error;
    fs::create_directories(paths_.directory, error);
    if (const rocksdb::Status locked = options_.env->LockFile(paths_.lock.string(), &lock_);
        !locked.ok()) {
      return absl::UnavailableError(absl::StrCat(
          paths_.directory.string(), ": cannot lock the checkpoint store: ", locked.ToString(),
          "; is another poseidon-server using this --data-dir, or is it read-only?"));
    }
    fs::remove_all(paths_.unsealed, error);
    // RocksDB, as Debian builds it, aborts where its first files find no room.
    if (const fs::space_info space = fs::space(paths_.directory, error);
        !error && space.available < kLeastSpace) {
      return absl::ResourceExhaustedError(
          absl::StrCat(paths_.directory.string(), ": the disk is full (", space.available,
                       " bytes are left, ", kLeastSpace, " are needed to start): make room"));
    }
    POSEIDON_RETURN_IF_ERROR(create_folder(paths_.unsealed));
    options_.use_direct_reads = has_direct_io(options_, paths_.unsealed);
    return open_db();
  }

  absl::Status put(SnapshotId snapshot, const ChunkView& chunk) override {
    if (sealed_.contains(snapshot)) {
      return absl::FailedPreconditionError(absl::StrCat(paths_.directory.string(), ": snapshot ",
                                                        snapshot_name(snapshot), " is sealed"));
    }
    return draft_of(snapshot).put(chunk);
  }

  absl::Status seal(SnapshotId snapshot) override {
    if (sealed_.contains(snapshot)) return absl::OkStatus();
    Draft& draft = draft_of(snapshot);
    POSEIDON_ASSIGN_OR_RETURN(const std::vector<std::string> files, draft.finish());
    const absl::Status taken =
        note(ingest(*db_, files), absl::StrCat("sealing checkpoint ", snapshot_name(snapshot)));
    if (!taken.ok()) {
      draft.spoil(taken);
      return taken;
    }
    sealed_[snapshot] = draft.index();
    drafts_.erase(snapshot);
    return absl::OkStatus();
  }

  absl::StatusOr<StoredChunk> get(SnapshotId snapshot, PieceId piece) override {
    POSEIDON_ASSIGN_OR_RETURN(const SnapshotIndex* const index, index_of(snapshot));
    const auto found = index == nullptr ? SnapshotIndex::const_iterator() : index->find(piece);
    if (index == nullptr || found == index->end()) {
      return absl::NotFoundError(absl::StrCat(paths_.directory.string(), ": no piece ",
                                              piece.value(), " in a sealed snapshot ",
                                              snapshot_name(snapshot)));
    }
    // A restore reads the pieces of a snapshot in order, so the next ones are prefetched while this
    // one is used.
    const bool ahead =
        !ahead_.empty() && ahead_.front().snapshot == snapshot && ahead_.front().piece == piece;
    if (!ahead) {
      ahead_.clear();
      read_ahead(snapshot, *found);
    }
    auto next = index->upper_bound(ahead_.back().piece);
    while (ahead_.size() <= kPiecesAhead && next != index->end()) {
      read_ahead(snapshot, *next++);
    }
    absl::StatusOr<StoredChunk> chunk = ahead_.front().chunk.get();
    ahead_.pop_front();
    return chunk;
  }

  absl::StatusOr<std::vector<SnapshotId>> list() override {
    std::vector<SnapshotId> snapshots;
    for (const auto& [snapshot, index] : sealed_) snapshots.push_back(snapshot);
    return snapshots;
  }

  absl::Status remove(SnapshotId snapshot) override {
    drafts_.erase(snapshot);
    ahead_.clear();
    if (!sealed_.contains(snapshot)) return absl::OkStatus();
    POSEIDON_RETURN_IF_ERROR(note(remove_files(*db_, snapshot),
                                  absl::StrCat("removing checkpoint ", snapshot_name(snapshot))));
    sealed_.erase(snapshot);
    return absl::OkStatus();
  }

  StoreFigures figures() override {
    const auto property = [this](const rocksdb::Slice& name) {
      std::uint64_t value = 0;
      return db_->GetIntProperty(name, &value) ? static_cast<std::int64_t>(value) : 0;
    };
    // Not GetLiveFilesMetaData, which copies the metadata of each file: this runs after every
    // checkpoint, and a store may have hundreds of files.
    std::int64_t files = 0;
    for (int level = 0; level < db_->NumberLevels(); ++level) {
      const std::string name = absl::StrCat(rocksdb::DB::Properties::kNumFilesAtLevelPrefix, level);
      std::string text;
      std::int64_t count = 0;
      if (db_->GetProperty(name, &text) && absl::SimpleAtoi(text, &count)) files += count;
    }
    return {.snapshots = static_cast<std::int64_t>(sealed_.size()),
            .bytes = property(rocksdb::DB::Properties::kTotalSstFilesSize),
            .files = files,
            .memory_bytes = property(rocksdb::DB::Properties::kEstimateTableReadersMem),
            .errors = property(rocksdb::DB::Properties::kBackgroundErrors)};
  }

 private:
  absl::Status open_db() {
    POSEIDON_ASSIGN_OR_RETURN(db_, open_database(paths_, options_));
    troubled_ = false;
    sealed_.clear();
    for (const SnapshotId snapshot : sealed_snapshots(*db_)) sealed_[snapshot];
    return absl::OkStatus();
  }

  Draft& draft_of(SnapshotId snapshot) {
    std::unique_ptr<Draft>& draft = drafts_[snapshot];
    if (draft == nullptr) draft = std::make_unique<Draft>(snapshot, paths_, options_, file_bytes_);
    return *draft;
  }

  void read_ahead(SnapshotId snapshot, const SnapshotIndex::value_type& entry) {
    ahead_.push_back({.snapshot = snapshot,
                      .piece = entry.first,
                      .chunk = std::async(std::launch::async, [this, snapshot, entry] {
                        return read_piece(snapshot, entry.first, entry.second);
                      })});
  }

  absl::StatusOr<StoredChunk> read_piece(SnapshotId snapshot, PieceId piece,
                                         const IndexEntry& entry) const {
    StoredChunk stored;
    stored.piece = piece;
    stored.version = entry.version;
    ArrayNumber number = entry.first;
    std::size_t slot = 0;
    for (std::vector<float>* const to : {&stored.parameters, &stored.state0, &stored.state1}) {
      const std::uint64_t elements = entry.elements[slot++];
      if (elements == 0) continue;
      POSEIDON_RETURN_IF_ERROR(read_array({snapshot, number++}, elements, piece, *to));
    }
    return stored;
  }

  /// The index of a sealed snapshot, null when it is not sealed.
  absl::StatusOr<const SnapshotIndex*> index_of(SnapshotId snapshot) {
    const auto sealed = sealed_.find(snapshot);
    if (sealed == sealed_.end()) return nullptr;
    if (!sealed->second) {
      std::string bytes;
      const rocksdb::Status status =
          db_->Get(rocksdb::ReadOptions(), encode_key({snapshot, kIndexNumber}), &bytes);
      sealed->second = status.ok() ? decode_index(bytes) : std::nullopt;
      if (!sealed->second) {
        return absl::DataLossError(absl::StrCat(
            paths_.directory.string(), ": the index of checkpoint ", snapshot_name(snapshot),
            " is damaged (", status.ToString(), "): use another checkpoint, or another copy"));
      }
    }
    return &*sealed->second;
  }

  absl::Status read_array(const ArrayKey& key, std::uint64_t elements, PieceId piece,
                          std::vector<float>& to) const {
    // An iterator shows the value where it was read; Get would copy it.
    const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions()));
    const std::string wanted = encode_key(key);
    at->Seek(wanted);
    const bool found = at->Valid() && at->key() == wanted;
    if (!found || at->value().size() != elements * sizeof(float)) {
      return absl::DataLossError(absl::StrCat(
          paths_.directory.string(), ": piece ", piece.value(), " of checkpoint ",
          snapshot_name(key.snapshot), " is damaged (",
          found ? absl::StrCat(at->value().size(), " bytes for ", elements, " elements")
          : at->status().ok() ? "its file is missing"
                              : at->status().ToString(),
          "): use another checkpoint, or another copy"));
    }
    const char* const bytes = at->value().data();
    to.assign(StoredFloats{bytes}, StoredFloats{bytes + at->value().size()});
    return absl::OkStatus();
  }

  /// After a write of its manifest has failed RocksDB begins a new one with the next write, and
  /// removes no files until it is told to (NeverStopped turns off what would block further writes).
  absl::Status note(const rocksdb::Status& status, const std::string& what) {
    const bool was_troubled = std::exchange(troubled_, !status.ok());
    if (!was_troubled || troubled_) return store_status(status, paths_.directory, what);
    spdlog::info("{}: the checkpoint store takes writes again", paths_.directory.string());
    return store_status(db_->EnableFileDeletions(/*force=*/true), paths_.directory,
                        absl::StrCat("removing files again after ", what));
  }

  const StorePaths paths_;
  const std::uint64_t file_bytes_;
  const std::unique_ptr<rocksdb::Env> env_;
  /// A piece that is being read on a thread of its own.
  struct Ahead {
    SnapshotId snapshot;
    PieceId piece;
    std::future<absl::StatusOr<StoredChunk>> chunk;  ///< its destruction waits for the thread
  };

  rocksdb::Options options_;  ///< fixed once the store is open
  rocksdb::FileLock* lock_ = nullptr;
  std::unique_ptr<rocksdb::DB> db_;
  bool troubled_ = false;  ///< the last write to the database failed
  std::map<SnapshotId, std::unique_ptr<Draft>> drafts_;
  std::map<SnapshotId, std::optional<SnapshotIndex>> sealed_;  ///< indexes as far as they were read
  std::deque<Ahead> ahead_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkStore>> open_rocksdb_chunk_store(
    const std::filesystem::path& directory, RocksdbStoreOptions options) {
  if (options.file_system == nullptr) options.file_system = rocksdb::FileSystem::Default();
  auto store = std::make_unique<RocksdbChunkStore>(StorePaths(directory),
                                                   rocksdb::NewCompositeEnv(options.file_system),
                                                   options.table_file_bytes);
  POSEIDON_RETURN_IF_ERROR(store->open());
  return store;
}

}  // namespace poseidon
