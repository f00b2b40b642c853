#include "server/rocksdb_chunk_store.h"

#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>
#include <zlib.h>

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace poseidon {
namespace {

static_assert(std::endian::native == std::endian::little, "records hold native floats");

constexpr char kChunkPrefix = 'c';
constexpr char kSealPrefix = 's';
constexpr std::size_t kHeaderBytes = 4 * sizeof(std::uint64_t);
constexpr std::size_t kChecksumBytes = sizeof(std::uint32_t);

/// Big endian, so that RocksDB's order of keys is the order of numbers.
template <typename Number>
void append_big_endian(std::string& out, Number value) {
  for (std::size_t i = sizeof value; i-- > 0;) out.push_back(static_cast<char>(value >> (8 * i)));
}

std::string snapshot_key(char prefix, SnapshotId snapshot) {
  std::string key(1, prefix);
  append_big_endian(key, snapshot.value());
  return key;
}

std::string piece_key(SnapshotId snapshot, PieceId piece) {
  std::string key = snapshot_key(kChunkPrefix, snapshot);
  append_big_endian(key, piece.value());
  return key;
}

std::uint32_t checksum(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

void append_raw(std::string& out, const void* bytes, std::size_t size) {
  if (size > 0) out.append(static_cast<const char*>(bytes), size);
}

std::string encode(const ChunkView& chunk) {
  const std::array<std::uint64_t, 4> header = {static_cast<std::uint64_t>(chunk.version),
                                               chunk.parameters.size(), chunk.state0.size(),
                                               chunk.state1.size()};
  std::string record;
  record.reserve(kHeaderBytes + kChecksumBytes + chunk.parameters.size_bytes() +
                 chunk.state0.size_bytes() + chunk.state1.size_bytes());
  append_raw(record, header.data(), kHeaderBytes);
  for (const auto floats : {chunk.parameters, chunk.state0, chunk.state1}) {
    append_raw(record, floats.data(), floats.size_bytes());
  }
  const std::uint32_t sum = checksum(record);
  append_raw(record, &sum, sizeof sum);
  return record;
}

/// False when the record is not what encode wrote.
bool decode(std::string_view record, StoredChunk& chunk) {
  if (record.size() < kHeaderBytes + kChecksumBytes) return false;
  std::uint32_t sum = 0;
  const std::string_view body = record.substr(0, record.size() - kChecksumBytes);
  std::memcpy(&sum, record.data() + body.size(), sizeof sum);
  if (sum != checksum(body)) return false;
  std::array<std::uint64_t, 4> header{};
  std::memcpy(header.data(), body.data(), kHeaderBytes);
  chunk.version = static_cast<Iteration>(header[0]);
  std::string_view rest = body.substr(kHeaderBytes);
  for (const auto& [elements, out] :
       {std::pair{header[1], &chunk.parameters}, std::pair{header[2], &chunk.state0},
        std::pair{header[3], &chunk.state1}}) {
    if (elements > rest.size() / sizeof(float)) return false;
    out->resize(elements);
    if (elements > 0) std::memcpy(out->data(), rest.data(), elements * sizeof(float));
    rest.remove_prefix(elements * sizeof(float));
  }
  return rest.empty();
}

class RocksdbChunkStore final : public ChunkStore {
 public:
  RocksdbChunkStore(std::string directory, std::unique_ptr<rocksdb::DB> db)
      : directory_(std::move(directory)), db_(std::move(db)) {}

  absl::Status put(SnapshotId snapshot, const ChunkView& chunk) override {
    POSEIDON_ASSIGN_OR_RETURN(const bool sealed, is_sealed(snapshot));
    if (sealed) {
      return absl::FailedPreconditionError(
          absl::StrCat(directory_, ": snapshot ", snapshot.value(), " is sealed"));
    }
    return convert(
        db_->Put(rocksdb::WriteOptions(), piece_key(snapshot, chunk.piece), encode(chunk)),
        "writing a chunk");
  }

  absl::Status seal(SnapshotId snapshot) override {
    // The log is written in order: a synced seal has every chunk before it on the disk too.
    rocksdb::WriteOptions durable;
    durable.sync = true;
    return convert(db_->Put(durable, snapshot_key(kSealPrefix, snapshot), ""),
                   "sealing a snapshot");
  }

  absl::StatusOr<StoredChunk> get(SnapshotId snapshot, PieceId piece) override {
    POSEIDON_ASSIGN_OR_RETURN(const bool sealed, is_sealed(snapshot));
    std::string record;
    const rocksdb::Status status =
        db_->Get(rocksdb::ReadOptions(), piece_key(snapshot, piece), &record);
    if (!sealed || status.IsNotFound()) {
      return absl::NotFoundError(absl::StrCat(directory_, ": no piece ", piece.value(),
                                              " in a sealed snapshot ", snapshot.value()));
    }
    POSEIDON_RETURN_IF_ERROR(convert(status, "reading a chunk"));
    StoredChunk stored;
    stored.piece = piece;
    if (!decode(record, stored)) {
      return absl::DataLossError(absl::StrCat(directory_, ": piece ", piece.value(),
                                              " of snapshot ", snapshot.value(),
                                              " is damaged: use an older snapshot"));
    }
    return stored;
  }

  absl::StatusOr<std::vector<SnapshotId>> list() override {
    std::vector<SnapshotId> snapshots;
    const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions()));
    for (at->Seek(std::string(1, kSealPrefix)); at->Valid() && at->key()[0] == kSealPrefix;
         at->Next()) {
      std::uint64_t id = 0;
      for (std::size_t i = 1; i < at->key().size(); ++i) {
        id = (id << 8) | static_cast<std::uint8_t>(at->key()[i]);
      }
      snapshots.emplace_back(id);
    }
    POSEIDON_RETURN_IF_ERROR(convert(at->status(), "listing snapshots"));
    return snapshots;
  }

  absl::Status remove(SnapshotId snapshot) override {
    // The seal goes first and with the rest: what is half removed is not readable.
    rocksdb::WriteBatch batch;
    batch.Delete(snapshot_key(kSealPrefix, snapshot));
    batch.DeleteRange(snapshot_key(kChunkPrefix, snapshot),
                      snapshot_key(kChunkPrefix, snapshot.next()));
    return convert(db_->Write(rocksdb::WriteOptions(), &batch), "removing a snapshot");
  }

 private:
  absl::StatusOr<bool> is_sealed(SnapshotId snapshot) {
    std::string value;
    const rocksdb::Status status =
        db_->Get(rocksdb::ReadOptions(), snapshot_key(kSealPrefix, snapshot), &value);
    if (status.IsNotFound()) return false;
    POSEIDON_RETURN_IF_ERROR(convert(status, "looking for a seal"));
    return true;
  }

  absl::Status convert(const rocksdb::Status& status, const char* what) const {
    if (status.ok()) return absl::OkStatus();
    const std::string message = absl::StrCat(directory_, ": ", what, ": ", status.ToString());
    if (status.IsNoSpace()) return absl::ResourceExhaustedError(message);
    if (status.IsCorruption()) return absl::DataLossError(message);
    return absl::UnavailableError(message);
  }

  const std::string directory_;
  const std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkStore>> open_rocksdb_chunk_store(
    const std::filesystem::path& directory) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;  // float noise does not compress
  options.paranoid_checks = true;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options, directory.string(), &db);
  if (!status.ok()) {
    const std::string message =
        absl::StrCat(directory.string(), ": cannot open the chunk store: ", status.ToString());
    return status.IsCorruption() ? absl::DataLossError(message) : absl::UnavailableError(message);
  }
  return std::make_unique<RocksdbChunkStore>(directory.string(), std::unique_ptr<rocksdb::DB>(db));
}

}  // namespace poseidon
