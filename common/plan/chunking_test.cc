#include "common/plan/chunking.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::chunking_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Chunking, EmptyLayerHasNoChunks) { EXPECT_THAT(split_into_chunks(0, 4096), IsEmpty()); }

TEST(Chunking, OneChunkWhenItFitsExactly) {
  EXPECT_THAT(split_into_chunks(1024, 4096), ElementsAre(ChunkRange{0, 1024}));
}

TEST(Chunking, OnlyTheLastIsShorter) {
  EXPECT_THAT(split_into_chunks(2500, 4096),
              ElementsAre(ChunkRange{0, 1024}, ChunkRange{1024, 1024}, ChunkRange{2048, 452}));
}

TEST(Chunking, OneElementMoreThanAChunk) {
  EXPECT_THAT(split_into_chunks(1025, 4096), ElementsAre(ChunkRange{0, 1024}, ChunkRange{1024, 1}));
}

TEST(Chunking, BytesThatAreNoMultipleOfAnElementRoundDown) {
  EXPECT_THAT(split_into_chunks(3, 7),
              ElementsAre(ChunkRange{0, 1}, ChunkRange{1, 1}, ChunkRange{2, 1}));
}

TEST(Chunking, CoversEveryElementOnceOverAwkwardSizes) {
  for (std::int64_t elements : {1, 2, 3, 1023, 1024, 1025, 431080, 1 << 20}) {
    for (std::int64_t chunk_bytes : {4, 12, 4096, 2 << 20}) {
      std::int64_t next = 0;
      for (const ChunkRange& chunk : split_into_chunks(elements, chunk_bytes)) {
        ASSERT_EQ(chunk.offset, next);
        ASSERT_GT(chunk.elements, 0);
        ASSERT_LE(chunk.elements * kElementBytes, chunk_bytes);
        next += chunk.elements;
      }
      ASSERT_EQ(next, elements);
    }
  }
}

TEST(ChunkingDeathTest, RefusesAChunkWithoutRoom) {
  EXPECT_DEATH(split_into_chunks(10, 3), "at least one element");
}

}  // namespace
}  // namespace poseidon::chunking_test
