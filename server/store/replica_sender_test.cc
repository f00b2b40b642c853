#include "server/store/replica_sender.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/transport/memory_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/memory_chunk_store.h"
#include "server/store/store_service.h"

namespace poseidon::replica_sender_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr Epoch kEpoch{5};
constexpr std::uint32_t kChunks = 7;

SnapshotId at(Iteration iteration) { return snapshot_id(kEpoch, iteration); }

/// One server that sends its chunks, and one that keeps the copies, on a network with faults.
class ReplicaSenderTest : public ::testing::Test {
 protected:
  void build(const MemoryFaults& faults, const std::string& to = "other:1") {
    network_ = std::make_unique<MemoryNetwork>(3, faults);
    Transport* other = &network_->endpoint("other");
    disk_ = std::make_unique<BackgroundOnLoop>(other, Milliseconds(5));
    keeper_ = std::make_unique<CheckpointKeeper>(std::make_unique<MemoryChunkStore>(), disk_.get());
    service_ = std::make_unique<StoreService>(other, keeper_.get(), &refusals_, RefusalLog());
    ASSERT_TRUE(other->listen("other:1", service_.get()).ok());
    keeper_->begin(kEpoch, kChunks, [this](const SnapshotResult& result) {
      EXPECT_TRUE(result.status.ok()) << result.status;
      sealed_.push_back(result.snapshot);
    });
    self_ = &network_->endpoint("self");
    sender_ = std::make_unique<ReplicaSender>(self_);
    sender_->begin(to, [this](SnapshotId snapshot, const absl::Status& status) {
      failed_.emplace_back(snapshot, status);
    });
  }
  ~ReplicaSenderTest() override { sender_.reset(); }

  void put(Iteration iteration, std::uint32_t chunk) {
    FrozenChunk frozen{.chunk = ChunkId(chunk), .version = iteration};
    frozen.parameters = FloatBuffer(2);
    frozen.state0 = FloatBuffer(2);
    frozen.parameters.floats()[0] = static_cast<float>(iteration);
    frozen.state0.floats()[1] = static_cast<float>(chunk);
    memory_.push_back(frozen.parameters.owner());
    sender_->put(at(iteration), std::move(frozen));
  }
  /// As long as something happens, for so much of the network's time.
  void run(Nanoseconds time) {
    const Nanoseconds end = self_->now() + time;
    self_->post_after(time, [] {});
    while (self_->now() < end && network_->step()) {
    }
  }
  bool memory_is_given_back() const {
    return std::all_of(memory_.begin(), memory_.end(), [](const auto& m) { return m.expired(); });
  }

  std::unique_ptr<MemoryNetwork> network_;
  Transport* self_ = nullptr;
  std::unique_ptr<BackgroundOnLoop> disk_;
  std::unique_ptr<CheckpointKeeper> keeper_;
  RefusalCounts refusals_;
  std::unique_ptr<StoreService> service_;
  std::unique_ptr<ReplicaSender> sender_;
  std::vector<std::weak_ptr<float>> memory_;
  std::vector<SnapshotId> sealed_;
  std::vector<std::pair<SnapshotId, absl::Status>> failed_;
};

TEST_F(ReplicaSenderTest, TheOtherServerSealsWhatItWasSentThroughCuts) {
  build({.max_delay = Milliseconds(20), .cut = 0.05});
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    put(10, chunk);
    run(Milliseconds(30));  // chunks freeze one by one
  }
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) put(20, chunk);
  run(std::chrono::seconds(20));
  EXPECT_THAT(sealed_, ElementsAre(at(10), at(20)));
  EXPECT_TRUE(failed_.empty());
  EXPECT_TRUE(memory_is_given_back());
  bool read = false;
  keeper_->read(at(20), PieceId(3), [&read](const auto& chunk) {
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_THAT((*chunk)->parameters, ElementsAre(20, 0));
    EXPECT_THAT((*chunk)->state0, ElementsAre(0, 3));
    EXPECT_TRUE((*chunk)->state1.empty());
    read = true;
  });
  run(Milliseconds(50));
  EXPECT_TRUE(read);
}

TEST_F(ReplicaSenderTest, AServerThatIsGoneFailsEachSnapshotOnceAndHoldsNoMemory) {
  build({}, "nobody:1");
  put(10, 0);
  put(20, 0);
  put(30, 0);  // beyond what may wait
  put(30, 1);
  ASSERT_THAT(failed_, SizeIs(1));
  EXPECT_EQ(failed_[0].first, at(30));
  EXPECT_THAT(std::string(failed_[0].second.message()), HasSubstr("checkpoint.every_iterations"));
  put(10, 1);
  run(3 * kWriting.give_up_after);
  ASSERT_THAT(failed_, SizeIs(3));
  EXPECT_EQ(failed_[1].first, at(10));
  EXPECT_EQ(failed_[2].first, at(20));
  EXPECT_THAT(std::string(failed_[1].second.message()), HasSubstr("nobody:1 did not answer"));
  put(10, 2);
  EXPECT_TRUE(memory_is_given_back());
}

TEST_F(ReplicaSenderTest, WhatIsSavedFromMemoryDoesNotFailForOthers) {
  build({}, "nobody:1");
  put(10, 0);
  put(20, 0);
  sender_->expect(at(19));
  put(19, 0);
  put(30, 0);
  ASSERT_THAT(failed_, SizeIs(1));
  EXPECT_EQ(failed_[0].first, at(30));
}

TEST_F(ReplicaSenderTest, AnEpochsEndEndsWhatIsUnderWayWithoutAWord) {
  build({});
  put(10, 0);
  put(20, 0);
  sender_->end();
  EXPECT_TRUE(memory_is_given_back());
  run(3 * kWriting.give_up_after);
  EXPECT_TRUE(failed_.empty());
  put(30, 0);
  EXPECT_TRUE(memory_is_given_back()) << "nobody keeps copies now";
}

}  // namespace
}  // namespace poseidon::replica_sender_test
