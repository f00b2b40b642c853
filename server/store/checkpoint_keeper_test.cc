#include "server/store/checkpoint_keeper.h"
#include "common/threads/mutex.h"

#include <filesystem>
#include <future>
#include <optional>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/memory_chunk_store.h"
#include "tests/support/eventually.h"

namespace poseidon::checkpoint_keeper_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Epoch kEpoch{5};

SnapshotId at(Iteration iteration) { return snapshot_id(kEpoch, iteration); }

/// A store whose disk can stand still or be full.
class TroubledStore final : public ChunkStore {
 public:
  struct Trouble {
    Mutex gate;                                            ///< held: the disk stands still
    std::vector<std::uint32_t> put ABSL_GUARDED_BY(gate);  ///< pieces, in order
    std::atomic<bool> full{false};
    std::atomic<bool> keeps{false};  ///< removes nothing
    Mutex mutex;
    std::set<SnapshotId> removed;  ///< under mutex; tests read it when all is quiet, too
  };
  explicit TroubledStore(Trouble* trouble) : trouble_(trouble) {}
  absl::Status put(SnapshotId snapshot, const ChunkView& chunk) override {
    const MutexLock lock(trouble_->gate);
    trouble_->put.push_back(chunk.piece.value());
    if (trouble_->full) return absl::ResourceExhaustedError("/data: no space left on device");
    return inner_.put(snapshot, chunk);
  }
  absl::Status seal(SnapshotId snapshot) override { return inner_.seal(snapshot); }
  absl::StatusOr<StoredChunk> get(SnapshotId snapshot, PieceId piece) override {
    return inner_.get(snapshot, piece);
  }
  absl::StatusOr<std::vector<SnapshotId>> list() override { return inner_.list(); }
  absl::Status remove(SnapshotId snapshot) override {
    const MutexLock lock(trouble_->mutex);
    if (trouble_->keeps) return absl::InternalError("/data: input/output error");
    trouble_->removed.insert(snapshot);
    return inner_.remove(snapshot);
  }
  StoreFigures figures() override { return inner_.figures(); }

 private:
  Trouble* const trouble_;
  MemoryChunkStore inner_;
};

class KeeperTest : public ::testing::Test {
 protected:
  KeeperTest()
      : keeper_(std::make_unique<TroubledStore>(&trouble_), &background_.emplace(), probe_) {
    keeper_.begin(kEpoch, 2, [this](const SnapshotResult& result) {
      const MutexLock lock(mutex_);
      results_.push_back(result);
    });
  }
  ~KeeperTest() override { background_.reset(); }
  static FrozenChunk chunk(std::uint32_t id, Iteration version, float value) {
    FrozenChunk frozen{.chunk = ChunkId(id), .version = version};
    frozen.parameters = FloatBuffer(3);
    frozen.state0 = FloatBuffer(3);
    std::fill(frozen.parameters.floats().begin(), frozen.parameters.floats().end(), value);
    return frozen;
  }
  /// Half of what is written in one turn.
  static FrozenChunk large_chunk(std::uint32_t id, Iteration version) {
    FrozenChunk frozen{.chunk = ChunkId(id), .version = version};
    frozen.parameters = FloatBuffer(CheckpointKeeper::kBytesPerTurn / 2 / 4);
    return frozen;
  }
  absl::Status give(SnapshotId snapshot, std::uint32_t id, float value) {
    std::promise<absl::Status> answer;
    keeper_.put(
        snapshot,
        {.piece = PieceId(id), .version = 0, .parameters = {value}, .state0 = {}, .state1 = {}},
        [&answer](const absl::Status& status) { answer.set_value(status); });
    return answer.get_future().get();
  }
  absl::StatusOr<std::shared_ptr<const StoredChunk>> read(SnapshotId snapshot, std::uint32_t id) {
    std::promise<absl::StatusOr<std::shared_ptr<const StoredChunk>>> answer;
    keeper_.read(snapshot, PieceId(id),
                 [&answer](auto chunk) { answer.set_value(std::move(chunk)); });
    return answer.get_future().get();
  }
  /// Everything asked before has been done: what waited for others' turn, by the second time.
  void settle() {
    for (int times = 0; times < 2; ++times) (void)read(at(0), 0);
  }
  std::vector<SnapshotResult> results() {
    const MutexLock lock(mutex_);
    return results_;
  }

  TroubledStore::Trouble trouble_;
  Mutex mutex_;
  std::vector<SnapshotResult> results_ ABSL_GUARDED_BY(mutex_);
  const std::shared_ptr<NodeProbe> probe_ = std::make_shared<NodeProbe>();
  std::optional<BackgroundThread> background_;
  CheckpointKeeper keeper_;
};

TEST_F(KeeperTest, SealsWhenAllPiecesAreThere) {
  keeper_.put(at(10), chunk(0, 10, 1.5f));
  settle();
  EXPECT_TRUE(results().empty());
  EXPECT_FALSE(read(at(10), 0).ok()) << "an unsealed snapshot is never read";
  ASSERT_TRUE(give(at(10), 7, 2.5f).ok());
  ASSERT_EQ(results().size(), 1u);
  EXPECT_TRUE(results()[0].status.ok());
  EXPECT_EQ(results()[0].bytes, 3 * 4 + 3 * 4 + 4);
  const auto chunk = read(at(10), 0);
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_THAT((*chunk)->parameters, ElementsAre(1.5f, 1.5f, 1.5f));
  EXPECT_EQ((*chunk)->state0.size(), 3u);
  EXPECT_TRUE(give(at(10), 7, 2.5f).ok()) << "the answer to the first time may have been lost";
  EXPECT_EQ(results().size(), 1u);
  EXPECT_EQ(probe_->value(NodeGauge::kStoreSnapshots), 1);
  EXPECT_EQ(probe_->value(NodeGauge::kCheckpointQueue), 0);
  keeper_.forget(at(10));
  settle();
  EXPECT_EQ(probe_->value(NodeGauge::kStoreSnapshots), 0);
}

TEST_F(KeeperTest, AFullDiskFailsTheSnapshotAndLeavesTheLastOne) {
  keeper_.put(at(10), chunk(0, 10, 1.0f));
  ASSERT_TRUE(give(at(10), 1, 1.0f).ok());
  trouble_.full = true;
  keeper_.put(at(20), chunk(0, 20, 2.0f));
  EXPECT_EQ(give(at(20), 1, 2.0f).code(), absl::StatusCode::kAborted);
  trouble_.full = false;
  EXPECT_EQ(give(at(20), 1, 2.0f).code(), absl::StatusCode::kAborted) << "half of it is missing";
  ASSERT_EQ(results().size(), 2u);
  EXPECT_THAT(std::string(results()[1].status.message()), HasSubstr("no space left"));
  EXPECT_TRUE(trouble_.removed.contains(at(20)));
  EXPECT_TRUE(read(at(10), 0).ok());
  keeper_.put(at(30), chunk(0, 30, 3.0f));
  EXPECT_TRUE(give(at(30), 1, 3.0f).ok());
  EXPECT_TRUE(read(at(30), 0).ok());
}

TEST_F(KeeperTest, WhatHasTheSameNumberAndIsAnotherCoordinatorsStays) {
  EXPECT_EQ(keeper_.newest_epoch(), Epoch(0));
  keeper_.put(at(10), chunk(0, 10, 1.0f));
  ASSERT_TRUE(give(at(10), 1, 1.0f).ok());
  EXPECT_EQ(keeper_.newest_epoch(), kEpoch);
  // A coordinator with a state directory of its own comes to the same epoch.
  keeper_.begin(kEpoch, 2, [this](const SnapshotResult& result) {
    const MutexLock lock(mutex_);
    results_.push_back(result);
  });
  EXPECT_FALSE(give(at(10), 1, 2.0f).ok());
  keeper_.forget(at(10));
  settle();
  ASSERT_EQ(results().size(), 2u);
  EXPECT_FALSE(results()[1].status.ok());
  EXPECT_TRUE(trouble_.removed.empty());
  const auto kept = read(at(10), 0);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_THAT((*kept)->parameters, ElementsAre(1.0f, 1.0f, 1.0f));
  // What it makes itself, it may remove.
  keeper_.put(at(20), chunk(0, 20, 2.0f));
  ASSERT_TRUE(give(at(20), 1, 2.0f).ok());
  keeper_.forget(at(20));
  settle();
  EXPECT_TRUE(trouble_.removed.contains(at(20)));
}

TEST_F(KeeperTest, ADiskThatStandsStillHoldsTwoSnapshotsAndNoMore) {
  std::weak_ptr<float> third;
  {
    const MutexLock still(trouble_.gate);
    for (const Iteration version : {10, 20}) {
      keeper_.put(at(version), chunk(0, version, 1.0f));
      keeper_.put(at(version), chunk(1, version, 1.0f));
    }
    FrozenChunk late = chunk(0, 30, 1.0f);
    third = late.parameters.owner();
    keeper_.put(at(30), std::move(late));
    EXPECT_TRUE(third.expired()) << "its memory is given back at once";
    EXPECT_GE(probe_->value(NodeGauge::kCheckpointQueue), 3) << "one may be with the disk";
    EXPECT_LE(probe_->value(NodeGauge::kCheckpointQueue), 4);
  }
  settle();
  const auto all = results();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_TRUE(all[0].status.ok());
  EXPECT_TRUE(all[1].status.ok());
  EXPECT_EQ(all[2].snapshot, at(30));
  EXPECT_THAT(std::string(all[2].status.message()), HasSubstr("checkpoint.every_iterations"));
}

/// A worker is lost in the iteration before a checkpoint that is due, and the one before is still
/// with the disk.
TEST_F(KeeperTest, WhatIsSavedFromMemoryDoesNotFailForOthers) {
  {
    const MutexLock still(trouble_.gate);
    keeper_.put(at(20), chunk(0, 20, 1.0f));
    keeper_.put(at(20), chunk(1, 20, 1.0f));
    keeper_.put(at(40), chunk(0, 40, 1.0f));  // it never gets whole
    keeper_.expect(at(39));
    keeper_.put(at(39), chunk(0, 39, 1.0f));
    keeper_.put(at(39), chunk(1, 39, 1.0f));
  }
  settle();
  const auto all = results();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].snapshot, at(20));
  EXPECT_EQ(all[1].snapshot, at(39));
  for (const SnapshotResult& result : all) EXPECT_TRUE(result.status.ok()) << result.status;
  // Nor where two others are open already.
  ASSERT_TRUE(give(at(50), 0, 1.0f).ok());
  keeper_.expect(at(49));
  EXPECT_TRUE(give(at(49), 0, 1.0f).ok());
  EXPECT_TRUE(give(at(49), 1, 1.0f).ok());
  EXPECT_FALSE(give(at(60), 0, 1.0f).ok());
}

/// What is saved from memory may be the version of a checkpoint that has failed, and the
/// coordinator another one since.
TEST_F(KeeperTest, WhoeverExpectsWhatIsGoneHearsSo) {
  keeper_.put(at(10), chunk(0, 10, 1.0f));
  keeper_.forget(at(10));  // another server's part has failed
  ASSERT_TRUE(give(at(20), 0, 1.0f).ok());
  ASSERT_TRUE(give(at(20), 1, 1.0f).ok());
  keeper_.expect(at(20));
  keeper_.expect(at(30));
  settle();
  ASSERT_EQ(results().size(), 1u) << "20 is sealed, 30 new";
  keeper_.forget(at(20));  // likewise, when this one's was sealed
  for (const Iteration version : {10, 20}) keeper_.expect(at(version));
  keeper_.expect(snapshot_id(Epoch(4), 10));  // not this one's
  settle();
  const auto all = results();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[1].snapshot, at(20));
  EXPECT_TRUE(absl::IsCancelled(all[1].status)) << "it had been told that it is there";
  for (const std::size_t i : {2u, 3u}) {
    EXPECT_EQ(all[i].snapshot, at(i == 2 ? 10 : 20));
    EXPECT_THAT(std::string(all[i].status.message()), HasSubstr("earlier attempt"));
  }
  EXPECT_TRUE(give(at(20), 0, 1.0f).ok()) << "a piece whose answer was lost is no failure";
}

TEST_F(KeeperTest, AnEpochsEndRemovesWhatIsHalfDone) {
  keeper_.put(at(10), chunk(0, 10, 1.0f));
  keeper_.end(Epoch(4));  // not this one
  keeper_.put(at(10), chunk(1, 10, 1.0f));
  keeper_.put(at(20), chunk(0, 20, 1.0f));
  settle();
  keeper_.end(kEpoch);
  keeper_.put(at(20), chunk(1, 20, 1.0f));
  settle();
  EXPECT_EQ(results().size(), 1u);
  EXPECT_TRUE(read(at(10), 1).ok());
  EXPECT_FALSE(read(at(20), 1).ok());
  EXPECT_THAT(trouble_.removed, ElementsAre(at(20)));
}

TEST_F(KeeperTest, WhatNoCoordinatorWantsIsRemovedFromItsStore) {
  const std::filesystem::path file =
      std::filesystem::path(::testing::TempDir()) / "poseidon_keeper_test_owner";
  std::filesystem::remove(file);
  const std::string identity(32, 'a');
  const auto fill = [this](Epoch epoch, Iteration iteration) {
    keeper_.begin(epoch, 1, nullptr);
    ASSERT_TRUE(give(snapshot_id(epoch, iteration), 0, 1.0f).ok());
  };
  const auto has = [this](std::uint64_t epoch, Iteration iteration) {
    return read(snapshot_id(Epoch(epoch), iteration), 0).ok();
  };
  keeper_.remember_owner_in(file);
  keeper_.keep_only({.identity = identity, .snapshots = {}, .epoch = Epoch(0)});
  fill(Epoch(6), 10);
  fill(Epoch(6), 20);
  fill(Epoch(7), 30);
  fill(Epoch(8), 40);
  keeper_.keep_only({.identity = std::string(32, 'b'), .snapshots = {}, .epoch = Epoch(0)});
  EXPECT_TRUE(has(6, 10)) << "another coordinator's";
  keeper_.keep_only(
      {.identity = identity, .snapshots = {snapshot_id(Epoch(6), 20)}, .epoch = Epoch(0)});
  EXPECT_FALSE(has(6, 10));
  EXPECT_TRUE(has(6, 20)) << "it is wanted";
  EXPECT_FALSE(has(7, 30));
  EXPECT_TRUE(has(8, 40)) << "this epoch's";
  EXPECT_EQ(*read_store_owner(file), identity);
  keeper_.keep_only({.identity = std::string(32, 'b'), .snapshots = {}, .epoch = Epoch(0)});
  fill(Epoch(9), 50);
  settle();
  EXPECT_EQ(*read_store_owner(file), StoreOwner::kNobody);
  keeper_.keep_only({.identity = identity, .snapshots = {}, .epoch = Epoch(0)});
  EXPECT_TRUE(has(6, 20));
  EXPECT_TRUE(has(9, 50));
  std::filesystem::remove(file);
}

TEST_F(KeeperTest, WorkerZerosStateIsAPieceOfWhatIsSavedFromMemory) {
  EXPECT_FALSE(keeper_.held_states());
  for (const Iteration i : {9, 10}) {
    ASSERT_TRUE(keeper_.hold_state(at(i), {static_cast<float>(i)}).ok());
  }
  ASSERT_TRUE(keeper_.held_states());
  EXPECT_EQ(keeper_.held_states()->oldest, 9);
  EXPECT_EQ(keeper_.held_states()->newest, 10);
  EXPECT_EQ(keeper_.put_held_state(at(11), PieceId(1)).code(), absl::StatusCode::kNotFound);
  keeper_.put(at(9), chunk(0, 9, 1.0f));
  ASSERT_TRUE(keeper_.put_held_state(at(9), PieceId(1)).ok());
  settle();
  ASSERT_EQ(results().size(), 1u);
  EXPECT_TRUE(results()[0].status.ok());
  EXPECT_THAT((*read(at(9), 1))->parameters, ElementsAre(9));
  keeper_.end(kEpoch);
  EXPECT_FALSE(keeper_.held_states());
  EXPECT_FALSE(keeper_.hold_state(at(11), {1}).ok());
}

TEST_F(KeeperTest, AnEmptyPieceWhereWorkerZeroHasNoState) {
  keeper_.put(at(9), chunk(0, 9, 1.0f));
  ASSERT_TRUE(keeper_.put_held_state(at(9), PieceId(1)).ok());
  settle();
  ASSERT_EQ(results().size(), 1u);
  EXPECT_TRUE((*read(at(9), 1))->parameters.empty());
}

TEST_F(KeeperTest, GivesUpWhenAnotherNodeFailed) {
  keeper_.put(at(10), chunk(0, 10, 1.0f));
  keeper_.forget(at(10));
  keeper_.put(at(10), chunk(1, 10, 1.0f));
  settle();
  EXPECT_TRUE(results().empty()) << "whoever told us knows";
  EXPECT_FALSE(read(at(10), 0).ok());
}

TEST_F(KeeperTest, RemovesWhatIsNotWantedAnyMore) {
  keeper_.put(at(10), chunk(0, 10, 1.0f));
  keeper_.put(at(10), chunk(1, 10, 1.0f));
  settle();
  ASSERT_TRUE(read(at(10), 0).ok());
  keeper_.forget(at(10));
  EXPECT_EQ(read(at(10), 0).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(KeeperTest, OthersHaveTheirTurnWhileAShardIsWritten) {
  keeper_.begin(kEpoch, 5, nullptr);
  MutexLock disk(trouble_.gate);
  for (std::uint32_t id = 0; id < 4; ++id) keeper_.put(at(10), large_chunk(id, 10));
  keeper_.put(at(10), {.piece = PieceId(9), .parameters = {1.0f}},
              [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; });
  disk.unlock();
  settle();
  disk.lock();
  EXPECT_THAT(trouble_.put, ElementsAre(0, 1, 9, 2, 3));
}

TEST_F(KeeperTest, WhatWaitsOfAnEpochThatIsOverIsNotWritten) {
  MutexLock disk(trouble_.gate);
  for (std::uint32_t id = 0; id < 4; ++id) keeper_.put(at(10), large_chunk(id, 10));
  ASSERT_TRUE(testing_support::eventually(
      [this] { return probe_->value(NodeGauge::kCheckpointQueue) == 3; }));
  keeper_.end(kEpoch);
  disk.unlock();
  settle();
  disk.lock();
  EXPECT_THAT(trouble_.put, ElementsAre(0)) << "the disk was at it";
  EXPECT_EQ(probe_->value(NodeGauge::kCheckpointQueue), 0);
}

TEST_F(KeeperTest, WhatTheDiskDidNotLetGoIsRemovedLater) {
  for (const std::uint32_t id : {0, 1}) ASSERT_TRUE(give(at(10), id, 1.0f).ok());
  trouble_.keeps = true;
  keeper_.forget(at(10));
  settle();
  trouble_.keeps = false;
  for (const std::uint32_t id : {0, 1}) ASSERT_TRUE(give(at(20), id, 1.0f).ok());
  settle();
  const MutexLock lock(trouble_.mutex);
  EXPECT_TRUE(trouble_.removed.contains(at(10)));
  EXPECT_FALSE(trouble_.removed.contains(at(20)));
}

}  // namespace
}  // namespace poseidon::checkpoint_keeper_test
