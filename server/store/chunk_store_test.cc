// One suite for the RocksDB store and its in-memory twin; tests that need a disk follow.

#include "server/store/chunk_store.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "server/store/memory_chunk_store.h"
#include "server/store/rocksdb_chunk_store.h"

namespace poseidon::chunk_store_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "poseidon-store-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::unique_ptr<ChunkStore> open(const std::filesystem::path& path) {
  auto store = open_rocksdb_chunk_store(path);
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

class ChunkStoreTest : public ::testing::TestWithParam<bool> {
 protected:
  ChunkStoreTest() {
    store_ = GetParam() ? open(folder_.path()) : std::make_unique<MemoryChunkStore>();
  }
  Folder folder_;
  std::unique_ptr<ChunkStore> store_;
};

const std::vector<float> kParameters = {1.0f, -2.0f, 3.5f};
const std::vector<float> kState = {0.5f, 0.25f, 0.125f};
constexpr SnapshotId kFirst{1}, kSecond{300};

ChunkView view(std::uint32_t chunk, Iteration version) {
  return {PieceId(chunk), version, kParameters, kState, {}};
}

TEST_P(ChunkStoreTest, WhatWasPutAndSealedComesBack) {
  ASSERT_TRUE(store_->put(kFirst, view(7, 42)).ok());
  ASSERT_TRUE(store_->seal(kFirst).ok());
  const auto chunk = store_->get(kFirst, PieceId(7));
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_EQ(chunk->version, 42);
  EXPECT_EQ(chunk->parameters, kParameters);
  EXPECT_EQ(chunk->state0, kState);
  EXPECT_TRUE(chunk->state1.empty());
}

TEST_P(ChunkStoreTest, WhatIsNotSealedIsNotSeen) {
  ASSERT_TRUE(store_->put(kFirst, view(7, 1)).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->get(kFirst, PieceId(7)).status()));
  EXPECT_THAT(*store_->list(), ElementsAre());
}

TEST_P(ChunkStoreTest, ASealedSnapshotDoesNotChange) {
  ASSERT_TRUE(store_->put(kFirst, view(7, 1)).ok());
  ASSERT_TRUE(store_->seal(kFirst).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->put(kFirst, view(7, 2))));
  EXPECT_EQ(store_->get(kFirst, PieceId(7))->version, 1);
}

TEST_P(ChunkStoreTest, SnapshotsAreListedOldestFirstAndRemovedWhole) {
  for (const SnapshotId id : {kSecond, kFirst}) {
    for (const std::uint32_t chunk : {0u, 255u, 256u, 0xFFFFFFFFu}) {
      ASSERT_TRUE(store_->put(id, view(chunk, 3)).ok());
    }
    ASSERT_TRUE(store_->seal(id).ok());
  }
  EXPECT_THAT(*store_->list(), ElementsAre(kFirst, kSecond));
  EXPECT_EQ(store_->figures().snapshots, 2);
  ASSERT_TRUE(store_->remove(kFirst).ok());
  ASSERT_TRUE(store_->remove(kFirst).ok());
  EXPECT_THAT(*store_->list(), ElementsAre(kSecond));
  EXPECT_EQ(store_->figures().snapshots, 1);
  EXPECT_TRUE(absl::IsNotFound(store_->get(kFirst, PieceId(255)).status()));
  EXPECT_TRUE(store_->get(kSecond, PieceId(0xFFFFFFFF)).ok());
}

INSTANTIATE_TEST_SUITE_P(Both, ChunkStoreTest, ::testing::Values(false, true),
                         [](const auto& which) { return which.param ? "Rocksdb" : "Memory"; });

TEST(RocksdbChunkStore, SurvivesItsProcess) {
  const Folder folder;
  {
    auto store = open(folder.path());
    ASSERT_TRUE(store->put(kFirst, view(1, 9)).ok());
    ASSERT_TRUE(store->seal(kFirst).ok());
    ASSERT_TRUE(store->put(kSecond, view(1, 10)).ok());
  }
  auto store = open(folder.path());
  EXPECT_THAT(*store->list(), ElementsAre(kFirst)) << "the second was never sealed";
  EXPECT_EQ(store->get(kFirst, PieceId(1))->version, 9);
}

TEST(RocksdbChunkStore, StartsLeaveNoFiles) {
  const Folder folder;
  const auto logs = [&folder] {
    int count = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder.path())) {
      if (file.path().extension() == ".log") ++count;
    }
    return count;
  };
  open(folder.path());
  const int once = logs();
  for (int i = 0; i < 3; ++i) open(folder.path());
  EXPECT_EQ(logs(), once);
}

TEST(RocksdbChunkStore, SaysWhenSomebodyElseHasItOpen) {
  const Folder folder;
  const auto store = open(folder.path());
  const auto second = open_rocksdb_chunk_store(folder.path());
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(folder.path().string()));
}

std::uintmax_t bytes_in(const std::filesystem::path& folder) {
  std::uintmax_t bytes = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    if (file.is_regular_file()) bytes += file.file_size();
  }
  return bytes;
}

TEST(RocksdbChunkStore, EveryByteIsWrittenOnceAndGivenBackAtOnce) {
  const Folder folder;
  auto store = open(folder.path());
  const std::vector<float> many(std::size_t{1} << 20, 0.5f);
  for (const SnapshotId snapshot : {kFirst, kSecond}) {
    for (std::uint32_t piece = 0; piece < 20; ++piece) {  // 160 MiB: several table files
      ASSERT_TRUE(store->put(snapshot, {PieceId(19 - piece), 1, many, many, {}}).ok());
    }
    ASSERT_TRUE(store->seal(snapshot).ok());
  }
  const std::uintmax_t payload = 2 * 20 * 2 * many.size() * sizeof(float);
  const std::uintmax_t small = 1 << 20;
  EXPECT_LT(bytes_in(folder.path()), payload + small);
  const StoreFigures both = store->figures();
  EXPECT_GE(both.bytes, static_cast<std::int64_t>(payload));
  EXPECT_LT(both.bytes, static_cast<std::int64_t>(payload + small));
  EXPECT_GE(both.files, 4) << "64 MiB each, and the indexes";
  EXPECT_GT(both.memory_bytes, 0);
  EXPECT_EQ(both.errors, 0);
  ASSERT_TRUE(store->remove(kFirst).ok());
  EXPECT_LT(store->figures().bytes, static_cast<std::int64_t>(payload / 2 + small));
  EXPECT_LT(store->figures().files, both.files);
  EXPECT_LT(bytes_in(folder.path()), payload / 2 + small);
  EXPECT_EQ(store->get(kSecond, PieceId(7))->state0, many);
  ASSERT_TRUE(store->put(kFirst, {PieceId(0), 1, many, {}, {}}).ok());
  ASSERT_TRUE(store->remove(kFirst).ok());
  EXPECT_LT(bytes_in(folder.path()), payload / 2 + small) << "unsealed ones are removed likewise";
}

TEST(RocksdbChunkStore, APieceThatIsPutAgainIsReplacedAndEmptyOnesAreKept) {
  const Folder folder;
  {
    auto store = open(folder.path());
    ASSERT_TRUE(store->put(kFirst, {PieceId(3), 1, kParameters, {}, {}}).ok());
    ASSERT_TRUE(store->put(kFirst, {PieceId(4), 2, {}, {}, {}}).ok());
    ASSERT_TRUE(store->put(kFirst, {PieceId(3), 5, kState, kParameters, kState}).ok());
    ASSERT_TRUE(store->seal(kFirst).ok());
  }
  auto store = open(folder.path());
  const auto replaced = store->get(kFirst, PieceId(3));
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_EQ(replaced->version, 5);
  EXPECT_EQ(replaced->parameters, kState);
  EXPECT_EQ(replaced->state0, kParameters);
  EXPECT_EQ(replaced->state1, kState);
  const auto empty = store->get(kFirst, PieceId(4));
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_TRUE(empty->parameters.empty());
  EXPECT_EQ(store->get(kFirst, PieceId(5)).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace poseidon::chunk_store_test
