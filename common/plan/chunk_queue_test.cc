#include "common/plan/chunk_queue.h"

#include <algorithm>
#include <set>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"

namespace poseidon::chunk_queue_test {
namespace {

TEST(ChunkQueue, MostUrgentFirstAndEachOnce) {
  ChunkQueue queue(200);
  for (const std::uint32_t id : {130u, 5u, 64u, 5u, 199u, 0u}) queue.push(ChunkId(id));
  EXPECT_EQ(queue.size(), 5u);
  for (const std::uint32_t id : {0u, 5u, 64u, 130u, 199u}) EXPECT_EQ(queue.pop(), ChunkId(id));
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(ChunkQueue, AnUrgentChunkOvertakesWhatWaits) {
  ChunkQueue queue(100);
  queue.push(ChunkId(90));
  queue.push(ChunkId(91));
  EXPECT_EQ(queue.pop(), ChunkId(90));
  queue.push(ChunkId(2));
  EXPECT_EQ(queue.pop(), ChunkId(2));
  EXPECT_EQ(queue.pop(), ChunkId(91));
}

TEST(ChunkQueue, WhatWasReadyFirstGoesFirstWhereTheOrderSaysSo) {
  ChunkQueue queue(100, SendOrder::kReady);
  for (const std::uint32_t id : {99u, 3u, 0u, 3u, 50u}) queue.push(ChunkId(id));
  EXPECT_EQ(queue.pop(), ChunkId(99));
  queue.push(ChunkId(1));
  queue.erase(ChunkId(0));
  for (const std::uint32_t id : {3u, 50u, 1u}) EXPECT_EQ(queue.pop(), ChunkId(id));
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(ChunkQueue, BehavesLikeAListInTheOrderOfBeingReady) {
  SplitMix64 random(12);
  ChunkQueue queue(100, SendOrder::kReady);
  std::vector<ChunkId> model;
  for (int i = 0; i < 20000; ++i) {
    const ChunkId id(static_cast<std::uint32_t>(random.below(100)));
    const auto at = std::find(model.begin(), model.end(), id);
    switch (random.below(3)) {
      case 0:
        queue.push(id);
        if (at == model.end()) model.push_back(id);
        break;
      case 1:
        queue.erase(id);
        if (at != model.end()) model.erase(at);
        break;
      default: {
        const auto got = queue.pop();
        ASSERT_EQ(got.has_value(), !model.empty());
        if (got) {
          ASSERT_EQ(*got, model.front());
          model.erase(model.begin());
        }
      }
    }
    ASSERT_EQ(queue.size(), model.size());
  }
}

TEST(ChunkQueue, BehavesLikeASet) {
  SplitMix64 random(11);
  ChunkQueue queue(300);
  std::set<ChunkId> model;
  for (int i = 0; i < 20000; ++i) {
    const ChunkId id(static_cast<std::uint32_t>(random.below(300)));
    switch (random.below(3)) {
      case 0:
        queue.push(id);
        model.insert(id);
        break;
      case 1:
        queue.erase(id);
        model.erase(id);
        break;
      default: {
        const auto got = queue.pop();
        ASSERT_EQ(got.has_value(), !model.empty());
        if (got) {
          ASSERT_EQ(*got, *model.begin());
          model.erase(model.begin());
        }
      }
    }
    ASSERT_EQ(queue.size(), model.size());
  }
}

}  // namespace
}  // namespace poseidon::chunk_queue_test
