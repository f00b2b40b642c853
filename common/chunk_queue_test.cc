#include "common/chunk_queue.h"

#include <set>

#include "common/random.h"
#include "gmock/gmock.h"

namespace poseidon {
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
}  // namespace poseidon
