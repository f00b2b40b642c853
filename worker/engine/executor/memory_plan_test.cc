#include "worker/engine/executor/memory_plan.h"

#include <algorithm>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::memory_plan_test {
namespace {

using ::testing::ElementsAre;

TEST(MemoryPlan, BuffersThatNeverMeetShareTheirPlace) {
  const MemoryPlan plan = plan_memory(std::vector<BufferUse>{{1000, 0, 3}, {1000, 4, 5}});
  EXPECT_THAT(plan.offsets, ElementsAre(0, 0));
  EXPECT_EQ(plan.total_bytes, 1024);
}

TEST(MemoryPlan, TheLastStepOfOneMeetsTheSameStepOfTheNext) {
  const MemoryPlan plan = plan_memory(std::vector<BufferUse>{{1000, 0, 4}, {1000, 4, 5}});
  EXPECT_THAT(plan.offsets, ElementsAre(0, 1024));
}

TEST(MemoryPlan, TheSmallestGapThatFitsIsTaken) {
  // When the last lives, the places of the first (320) and of the third (192) are free.
  const MemoryPlan plan = plan_memory(
      std::vector<BufferUse>{{320, 0, 0}, {256, 0, 9}, {192, 0, 0}, {128, 0, 9}, {64, 5, 9}});
  EXPECT_THAT(plan.offsets, ElementsAre(0, 320, 576, 768, 576));
  EXPECT_EQ(plan.total_bytes, 896);
}

TEST(MemoryPlan, NothingNeedsNothing) {
  EXPECT_EQ(plan_memory({}).total_bytes, 0);
  EXPECT_EQ(plan_memory(std::vector<BufferUse>{{0, 0, 0}}).total_bytes, 64);
}

TEST(MemoryPlan, NoTwoLiveBuffersOverlap) {
  SplitMix64 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<BufferUse> buffers;
    std::int64_t sum = 0;
    for (int i = 0; i < 60; ++i) {
      const auto first = static_cast<std::int64_t>(random.below(40));
      const auto bytes = static_cast<std::int64_t>(random.below(5000));
      buffers.push_back({bytes, first, first + static_cast<std::int64_t>(random.below(10))});
      sum += bytes;
    }
    const MemoryPlan plan = plan_memory(buffers);
    std::int64_t busiest = 0;  // no plan needs less
    for (std::int64_t step = 0; step < 50; ++step) {
      std::int64_t alive = 0;
      for (const BufferUse& use : buffers) {
        alive += use.first_step <= step && step <= use.last_step ? use.bytes : 0;
      }
      busiest = std::max(busiest, alive);
    }
    EXPECT_GE(plan.total_bytes, busiest);
    EXPECT_LT(plan.total_bytes, std::min(sum, busiest * 3 / 2)) << "of " << sum;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_EQ(plan.offsets[i] % kPlanAlignmentBytes, 0);
      EXPECT_LE(plan.offsets[i] + buffers[i].bytes, plan.total_bytes);
      for (std::size_t j = 0; j < i; ++j) {
        const bool meet = buffers[i].first_step <= buffers[j].last_step &&
                          buffers[j].first_step <= buffers[i].last_step;
        const bool apart = plan.offsets[i] + buffers[i].bytes <= plan.offsets[j] ||
                           plan.offsets[j] + buffers[j].bytes <= plan.offsets[i];
        EXPECT_TRUE(!meet || apart) << i << " and " << j;
      }
    }
  }
}

}  // namespace
}  // namespace poseidon::memory_plan_test
