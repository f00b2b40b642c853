#include "worker/data/feed/sampler.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::sampler_test {
namespace {

using ::testing::ElementsAre;

TEST(Sampler, IsThePublishedRule) {
  // From tests/data/sampling.py: permutation(1, 0, 10), permutation(1, 1, 10).
  std::vector<std::uint32_t> order;
  permutation_of_pass(1, 0, 10, order);
  EXPECT_THAT(order, ElementsAre(1, 4, 3, 5, 9, 0, 6, 7, 8, 2));
  permutation_of_pass(1, 1, 10, order);
  EXPECT_THAT(order, ElementsAre(0, 2, 4, 8, 1, 6, 7, 9, 3, 5));
  // sampling.py --size 1437 --seed 1 --workers 4 --batch-size 32 --rank 1 --iteration 11: goes from
  // pass 0 to 1
  Sampler sampler(1437, true, 1);
  std::vector<std::int64_t> batch;
  const std::uint64_t first = first_position(11, 32, 4, 1);
  EXPECT_EQ(first, 1440u);
  for (std::uint64_t i = 0; i < 6; ++i) batch.push_back(sampler.index_at(first + i));
  EXPECT_THAT(batch, ElementsAre(104, 121, 1362, 42, 106, 155));
  EXPECT_EQ(mix_seed(1, 2), 11045130339233787057u);
}

TEST(Sampler, EachPassSeesEachSampleOnce) {
  for (const bool shuffle : {false, true}) {
    for (const std::int64_t size : {1, 2, 7, 100}) {
      Sampler sampler(size, shuffle, 5);
      for (std::int64_t pass = 0; pass < 3; ++pass) {
        std::vector<std::int64_t> seen;
        for (std::int64_t i = 0; i < size; ++i) {
          seen.push_back(sampler.index_at(static_cast<std::uint64_t>(pass * size + i)));
        }
        // Small sets may come out sorted by chance; 100 samples do not.
        if (!shuffle || size == 100) {
          EXPECT_EQ(std::is_sorted(seen.begin(), seen.end()), !shuffle);
        }
        std::sort(seen.begin(), seen.end());
        std::vector<std::int64_t> all(static_cast<std::size_t>(size));
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(seen, all);
      }
    }
  }
}

TEST(Sampler, WithoutShuffleIsTheIdentity) {
  Sampler sampler(3, false, 1);
  std::vector<std::int64_t> indices;
  for (std::uint64_t i = 0; i < 7; ++i) indices.push_back(sampler.index_at(i));
  EXPECT_THAT(indices, ElementsAre(0, 1, 2, 0, 1, 2, 0));
}

TEST(Sampler, SeedsAndPassesDiffer) {
  std::vector<std::uint32_t> a, b, c;
  permutation_of_pass(1, 0, 50, a);
  permutation_of_pass(2, 0, 50, b);
  permutation_of_pass(1, 1, 50, c);
  EXPECT_NE(a, b);
  EXPECT_NE(a, c);
}

TEST(Sampler, JumpsGiveTheSameAsWalking) {
  Sampler walking(11, true, 9);
  std::vector<std::int64_t> walked;
  for (std::uint64_t i = 0; i < 55; ++i) walked.push_back(walking.index_at(i));
  Sampler jumping(11, true, 9);
  for (std::uint64_t i = 0; i < 55; ++i) {
    const std::uint64_t position = i * 27 % 55;
    EXPECT_EQ(jumping.index_at(position), walked[position]) << position;
  }
}

TEST(Sampler, WorkersShareAnIteration) {
  // 1 x 128 and 4 x 32 cover the same positions in the same order.
  for (const std::int64_t iteration : {0, 1, 99}) {
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(first_position(iteration, 32, 4, rank),
                first_position(iteration, 128, 1, 0) + rank * 32);
    }
  }
  EXPECT_EQ(first_position(1'000'000'000'000, 1 << 20, 1, 0), 1'000'000'000'000u << 20);
}

TEST(Sampler, PositionsFarOutDoNotOverflow) {
  const PassPosition place = pass_position(~std::uint64_t{0}, 1437);
  EXPECT_EQ(static_cast<std::uint64_t>(place.pass) * 1437 + static_cast<std::uint64_t>(place.index),
            ~std::uint64_t{0});
}

}  // namespace
}  // namespace poseidon::sampler_test
