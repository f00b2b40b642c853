// The RocksDB store on failing disks: full, read-only, failing fsync, damaged files. The disk is
// RocksDB's own file system, wrapped; where the system permits it, a real one.

#include <rocksdb/file_system.h>
#include <sys/mount.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "server/store/chunk_store.h"
#include "server/store/rocksdb_chunk_store.h"

namespace poseidon::rocksdb_chunk_store_fault_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Epoch kEpoch{3};
constexpr std::uint32_t kPieces = 6;
constexpr std::size_t kElements = 3000;

SnapshotId at(Iteration iteration) { return snapshot_id(kEpoch, iteration); }

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "poseidon-fault-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// What is wrong with the disk at the moment, and with which files.
struct Trouble {
  enum Kind { kNone, kFull, kReadOnly, kSyncFails };
  std::atomic<Kind> kind{kNone};
  std::string only;  ///< part of the names of the files that it concerns; fixed before use
  mutable std::atomic<int> spare{0};  ///< so many writes still find room

  rocksdb::IOStatus of_write(const std::string& name) const {
    if (name.find(only) == std::string::npos) return rocksdb::IOStatus::OK();
    if (kind != kNone && spare-- > 0) return rocksdb::IOStatus::OK();
    if (kind == kFull) return rocksdb::IOStatus::NoSpace("No space left on device");
    if (kind == kReadOnly) return rocksdb::IOStatus::IOError("Read-only file system");
    return rocksdb::IOStatus::OK();
  }
  rocksdb::IOStatus of_sync(const std::string& name) const {
    const bool fails = kind == kSyncFails && name.find(only) != std::string::npos;
    return fails ? rocksdb::IOStatus::IOError("fsync: Input/output error")
                 : rocksdb::IOStatus::OK();
  }
};

class TroubledFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  TroubledFile(std::unique_ptr<rocksdb::FSWritableFile> file, std::string name,
               const Trouble* trouble)
      : FSWritableFileOwnerWrapper(std::move(file)), name_(std::move(name)), trouble_(trouble) {}
  using FSWritableFileOwnerWrapper::Append;
  using FSWritableFileOwnerWrapper::PositionedAppend;
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* debug) override {
    const rocksdb::IOStatus status = trouble_->of_write(name_);
    return status.ok() ? target()->Append(data, options, debug) : status;
  }
  rocksdb::IOStatus PositionedAppend(const rocksdb::Slice& data, std::uint64_t offset,
                                     const rocksdb::IOOptions& options,
                                     rocksdb::IODebugContext* debug) override {
    const rocksdb::IOStatus status = trouble_->of_write(name_);
    return status.ok() ? target()->PositionedAppend(data, offset, options, debug) : status;
  }
  rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                         rocksdb::IODebugContext* debug) override {
    const rocksdb::IOStatus status = trouble_->of_sync(name_);
    return status.ok() ? target()->Sync(options, debug) : status;
  }
  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                          rocksdb::IODebugContext* debug) override {
    const rocksdb::IOStatus status = trouble_->of_sync(name_);
    return status.ok() ? target()->Fsync(options, debug) : status;
  }

 private:
  const std::string name_;
  const Trouble* const trouble_;
};

class TroubledFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit TroubledFileSystem(const Trouble* trouble)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), trouble_(trouble) {}
  const char* Name() const override { return "TroubledFileSystem"; }
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = trouble_->of_write(name);
    if (status.ok()) status = target()->NewWritableFile(name, options, file, debug);
    if (status.ok()) *file = std::make_unique<TroubledFile>(std::move(*file), name, trouble_);
    return status;
  }

 private:
  const Trouble* const trouble_;
};

std::vector<float> values(SnapshotId snapshot, std::uint32_t piece, float slot) {
  std::vector<float> floats(kElements);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    floats[i] = static_cast<float>(snapshot_iteration(snapshot) * 1000 + piece * 10) + slot +
                static_cast<float>(i) * 0x1p-12f;
  }
  return floats;
}

absl::Status write_snapshot(ChunkStore& store, SnapshotId snapshot) {
  for (std::uint32_t piece = 0; piece < kPieces; ++piece) {
    const auto parameters = values(snapshot, piece, 0), state = values(snapshot, piece, 1);
    if (const absl::Status status = store.put(
            snapshot, {PieceId(piece), snapshot_iteration(snapshot), parameters, state, {}});
        !status.ok()) {
      return status;
    }
  }
  return store.seal(snapshot);
}

/// Pieces that come back right; what does not must be an error of a kind that is allowed.
std::uint32_t whole_pieces(ChunkStore& store, SnapshotId snapshot,
                           const std::vector<absl::StatusCode>& allowed = {}) {
  std::uint32_t whole = 0;
  for (std::uint32_t piece = 0; piece < kPieces; ++piece) {
    const auto chunk = store.get(snapshot, PieceId(piece));
    if (!chunk.ok()) {
      EXPECT_THAT(allowed, ::testing::Contains(chunk.status().code())) << chunk.status();
      if (absl::IsDataLoss(chunk.status())) {
        EXPECT_THAT(std::string(chunk.status().message()), HasSubstr(snapshot_name(snapshot)));
      }
      continue;
    }
    EXPECT_EQ(chunk->version, snapshot_iteration(snapshot));
    EXPECT_EQ(chunk->parameters, values(snapshot, piece, 0)) << "wrong bytes";
    EXPECT_EQ(chunk->state0, values(snapshot, piece, 1)) << "wrong bytes";
    ++whole;
  }
  return whole;
}

std::unique_ptr<ChunkStore> open(const fs::path& path, const Trouble* trouble = nullptr) {
  RocksdbStoreOptions options;
  options.table_file_bytes = 40'000;  // several per snapshot
  if (trouble != nullptr) options.file_system = std::make_shared<TroubledFileSystem>(trouble);
  auto store = open_rocksdb_chunk_store(path, options);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

struct Fault {
  const char* name;
  Trouble::Kind kind;
  const char* only;
  absl::StatusCode code;
};

class FailingDisk : public ::testing::TestWithParam<Fault> {};

/// The snapshot fails and says where and why; what was sealed stays readable; when the disk works
/// again, so does the store, without being opened again.
TEST_P(FailingDisk, CostsTheSnapshotAndNothingElse) {
  const Folder folder;
  Trouble trouble;
  trouble.only = GetParam().only;
  {
    auto store = open(folder.path(), &trouble);
    ASSERT_TRUE(write_snapshot(*store, at(10)).ok());
    for (const Iteration iteration : {20, 30}) {
      trouble.kind = GetParam().kind;
      const absl::Status failed = write_snapshot(*store, at(iteration));
      EXPECT_EQ(failed.code(), GetParam().code) << failed;
      EXPECT_THAT(std::string(failed.message()), HasSubstr(folder.path().string()));
      (void)store->remove(at(iteration));
      EXPECT_EQ(whole_pieces(*store, at(10)), kPieces);
      EXPECT_EQ(store->get(at(iteration), PieceId(0)).status().code(), absl::StatusCode::kNotFound);
      trouble.kind = Trouble::kNone;
      const absl::Status again = write_snapshot(*store, at(iteration + 5));
      ASSERT_TRUE(again.ok()) << again;
    }
    ASSERT_TRUE(store->remove(at(25)).ok());
    EXPECT_THAT(*store->list(), ElementsAre(at(10), at(35)));
  }
  auto store = open(folder.path());
  EXPECT_EQ(whole_pieces(*store, at(10)), kPieces);
  EXPECT_EQ(whole_pieces(*store, at(35)), kPieces);
  EXPECT_TRUE(fs::is_empty(folder.path() / "unsealed"));
}

// Sealing writes to the manifest more than once. RocksDB 7.8 stops a database for good where the
// last of these fails, and its next write ends the process, though Resume said that all is well.
TEST_P(FailingDisk, AtWhicheverWrite) {
  const Folder folder;
  Trouble trouble;
  trouble.only = GetParam().only;
  auto store = open(folder.path(), &trouble);
  ASSERT_TRUE(write_snapshot(*store, at(10)).ok());
  int failures = 0;
  for (int spare = 0; spare < 40; ++spare) {
    const Iteration iteration = 20 + 20 * spare;
    trouble.spare = spare;
    trouble.kind = GetParam().kind;
    const absl::Status status = write_snapshot(*store, at(iteration));
    if (!status.ok()) {
      ++failures;
      EXPECT_EQ(status.code(), GetParam().code) << status;
      // It is tried again and again meanwhile.
      const absl::Status too_early = write_snapshot(*store, at(iteration + 5));
      EXPECT_EQ(too_early.code(), GetParam().code) << too_early;
      (void)store->remove(at(iteration + 5));
    }
    trouble.kind = Trouble::kNone;
    const absl::Status again = write_snapshot(*store, at(iteration + 10));
    ASSERT_TRUE(again.ok()) << again << " after " << spare << " writes and " << status;
    EXPECT_EQ(whole_pieces(*store, at(iteration + 10)), kPieces);
    ASSERT_TRUE(store->remove(at(iteration)).ok());
    ASSERT_TRUE(store->remove(at(iteration + 10)).ok());
  }
  EXPECT_GT(failures, 0);
  EXPECT_EQ(whole_pieces(*store, at(10)), kPieces);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, FailingDisk,
    ::testing::Values(Fault{"Full", Trouble::kFull, "", absl::StatusCode::kResourceExhausted},
                      Fault{"FullAtTheManifest", Trouble::kFull, "MANIFEST",
                            absl::StatusCode::kResourceExhausted},
                      Fault{"ReadOnly", Trouble::kReadOnly, "", absl::StatusCode::kUnavailable},
                      Fault{"SyncFails", Trouble::kSyncFails, ".sst",
                            absl::StatusCode::kUnavailable},
                      Fault{"SyncOfTheManifestFails", Trouble::kSyncFails, "MANIFEST",
                            absl::StatusCode::kUnavailable}),
    [](const auto& which) { return which.param.name; });

/// A small disk of our own.
class SmallDisk {
 public:
  SmallDisk() { mounted_ = ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, "size=2m") == 0; }
  ~SmallDisk() {
    if (mounted_) ::umount(folder_.path().c_str());
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  bool make_read_only() {
    return ::mount("", folder_.path().c_str(), "", MS_REMOUNT | MS_RDONLY, "size=2m") == 0;
  }
  fs::path path() const { return folder_.path() / "checkpoints"; }

 private:
  Folder folder_;
  bool mounted_ = false;
};

TEST(RealDisk, FullIsSaidWhenTheStoreIsOpened) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "mount: " << std::strerror(errno);
  {
    auto store = open(disk.path());
    ASSERT_NE(store, nullptr);
    ASSERT_TRUE(write_snapshot(*store, at(10)).ok());
  }
  const fs::path filling = disk.path().parent_path() / "filling";
  {
    std::ofstream file(filling);
    const std::string block(1 << 12, 'x');
    while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) continue;
  }
  const auto refused = open_rocksdb_chunk_store(disk.path(), {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("the disk is full"));
  fs::remove(filling);
  auto store = open(disk.path());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(whole_pieces(*store, at(10)), kPieces);
}

TEST(RealDisk, FullAndThenWithRoomAgain) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "mount: " << std::strerror(errno);
  auto store = open(disk.path());
  ASSERT_NE(store, nullptr);
  ASSERT_TRUE(write_snapshot(*store, at(10)).ok());
  absl::Status status;
  Iteration iteration = 10;
  while (status.ok() && iteration < 1000) status = write_snapshot(*store, at(iteration += 10));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("checkpoint.keep"));
  ASSERT_TRUE(store->remove(at(iteration)).ok());
  EXPECT_EQ(whole_pieces(*store, at(10)), kPieces);
  EXPECT_EQ(whole_pieces(*store, at(iteration - 10)), kPieces);
  ASSERT_TRUE(store->remove(at(20)).ok());
  status = write_snapshot(*store, at(2000));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(whole_pieces(*store, at(2000)), kPieces);
  ASSERT_TRUE(store->remove(at(30)).ok());  // some room is needed to open it
  store.reset();
  store = open(disk.path());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(whole_pieces(*store, at(2000)), kPieces);
}

TEST(RealDisk, ReadOnlyIsSaidWhenTheStoreIsOpened) {
  SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "mount: " << std::strerror(errno);
  ASSERT_TRUE(write_snapshot(*open(disk.path()), at(10)).ok());
  ASSERT_TRUE(disk.make_read_only());
  const auto store = open_rocksdb_chunk_store(disk.path());
  EXPECT_EQ(store.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr(disk.path().string()));
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("Read-only"));
}

/// "CURRENT", "MANIFEST", "OPTIONS", "sst": what is before the number, or the extension.
std::string kind_of(const fs::path& file) {
  const std::string name = file.filename().string();
  return file.has_extension() ? file.extension().string() : name.substr(0, name.find('-'));
}

void flip(const fs::path& file, SplitMix64& random) {
  const auto size = fs::file_size(file);
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto offset = static_cast<std::streamoff>(random.next() % size);
  bytes.seekg(offset);
  const int before = bytes.get();
  bytes.seekp(offset);
  bytes.put(static_cast<char>(before ^ (1 << (random.next() % 8))));
}

/// Damages one file of a store with two sealed snapshots, many times over, and opens it again.
class Damage : public ::testing::TestWithParam<const char*> {
 protected:
  enum class How { kFlip, kTruncate, kRemove };

  void round(std::uint64_t seed) {
    SplitMix64 random(seed);
    const Folder folder;
    {
      auto store = open(folder.path());
      for (const Iteration iteration : {5, 10, 20}) {
        ASSERT_TRUE(write_snapshot(*store, at(iteration)).ok());
      }
      ASSERT_TRUE(store->remove(at(5)).ok());
    }
    std::vector<fs::path> files;
    for (const auto& file : fs::directory_iterator(folder.path() / "db")) {
      if (kind_of(file.path()) == GetParam() && file.file_size() > 0) files.push_back(file.path());
    }
    ASSERT_FALSE(files.empty());
    std::sort(files.begin(), files.end());
    const fs::path& file = files[random.next() % files.size()];
    const auto how = static_cast<How>(random.next() % 3);
    if (how == How::kFlip) flip(file, random);
    if (how == How::kTruncate) fs::resize_file(file, random.next() % fs::file_size(file));
    if (how == How::kRemove) fs::remove(file);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", file.filename().string(), ", way ",
                              static_cast<int>(how)));
    auto store = open(folder.path());
    ASSERT_NE(store, nullptr);
    for (const Iteration iteration : {10, 20}) {
      whole_ += whole_pieces(*store, at(iteration),
                             {absl::StatusCode::kDataLoss, absl::StatusCode::kNotFound});
      all_ += kPieces;
    }
    EXPECT_EQ(whole_pieces(*store, at(5), {absl::StatusCode::kNotFound}), 0u) << "it was removed";
    ASSERT_TRUE(write_snapshot(*store, at(30)).ok());
    EXPECT_EQ(whole_pieces(*store, at(30)), kPieces);
    ASSERT_TRUE(store->remove(at(10)).ok());
    ASSERT_TRUE(store->remove(at(20)).ok());
    EXPECT_THAT(*store->list(), ElementsAre(at(30)));
    store.reset();
    store = open(folder.path());
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(whole_pieces(*store, at(30)), kPieces);
  }

  std::uint32_t whole_ = 0, all_ = 0;
};

TEST_P(Damage, GivesTheRightBytesOrAnErrorAndTheStoreGoesOn) {
  constexpr std::uint64_t kRounds = 10;
  for (std::uint64_t seed = 1; seed <= kRounds && !HasFatalFailure(); ++seed) round(seed);
  RecordProperty("whole", static_cast<int>(whole_));
  if (std::string(GetParam()) == ".sst") {
    EXPECT_GT(whole_, all_ / 2) << "one damaged file costs its own pieces";
    EXPECT_LT(whole_, all_) << "this test damages nothing";
  } else {
    EXPECT_EQ(whole_, all_) << "all values are whole, so all must come back";
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Damage,
                         ::testing::Values(".sst", "MANIFEST", "CURRENT", "OPTIONS", "IDENTITY"),
                         [](const auto& which) {
                           std::string name = which.param;
                           std::erase(name, '.');
                           return name;
                         });

/// Manifest and values damaged at once: intact pieces are still served, the rest is kept for the
/// operator.
TEST(DamageOfTwoFiles, WhatIsWholeIsServed) {
  const Folder folder;
  {
    auto store = open(folder.path());
    for (const Iteration iteration : {10, 20}) {
      ASSERT_TRUE(write_snapshot(*store, at(iteration)).ok());
    }
  }
  std::vector<fs::path> tables;
  for (const auto& file : fs::directory_iterator(folder.path() / "db")) {
    if (kind_of(file.path()) == ".sst") tables.push_back(file.path());
    if (kind_of(file.path()) == "MANIFEST") fs::resize_file(file.path(), 20);
  }
  std::sort(tables.begin(), tables.end());
  fs::resize_file(tables[0], 100);  // of the first snapshot
  auto store = open(folder.path());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(whole_pieces(*store, at(20)), kPieces);
  const std::uint32_t whole = whole_pieces(*store, at(10), {absl::StatusCode::kDataLoss});
  EXPECT_GT(whole, 0u);
  EXPECT_LT(whole, kPieces);
  EXPECT_TRUE(fs::exists(folder.path() / "damaged-1"));
  EXPECT_FALSE(fs::exists(folder.path() / "rescue"));
}

/// An interrupted rescue continues where it stopped.
TEST(DamageOfTwoFiles, ARescueThatWasCutOffGoesOn) {
  const Folder folder;
  for (const Iteration iteration : {10, 20}) {
    ASSERT_TRUE(write_snapshot(*open(folder.path()), at(iteration)).ok());
  }
  fs::rename(folder.path() / "db", folder.path() / "rescue");
  auto store = open(folder.path());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(whole_pieces(*store, at(10)), kPieces);
  EXPECT_EQ(whole_pieces(*store, at(20)), kPieces);
  EXPECT_FALSE(fs::exists(folder.path() / "rescue"));
  EXPECT_FALSE(fs::exists(folder.path() / "damaged-1"));
}

}  // namespace
}  // namespace poseidon::rocksdb_chunk_store_fault_test
