#include "common/tensor/scan.h"

#include <bit>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace poseidon::digest_test {
namespace {

TEST(Digest, AnyChangedBitOfAnyElementShows) {
  for (const std::size_t size : {1u, 2u, 7u, 8u, 9u, 67u}) {
    std::vector<float> values(size, 1.5f);
    const std::uint64_t before = digest_of(values);
    EXPECT_EQ(before, digest_of(values));
    std::set<std::uint64_t> seen{before};
    for (float& value : values) {
      for (int bit = 0; bit < 32; ++bit) {
        const float kept = value;
        value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (1u << bit));
        EXPECT_TRUE(seen.insert(digest_of(values)).second) << size << " elements, bit " << bit;
        value = kept;
      }
    }
  }
}

TEST(Digest, OrderLengthAndSignsOfZeroCount) {
  EXPECT_NE(digest_of(std::vector<float>{1, 2, 3}), digest_of(std::vector<float>{3, 2, 1}));
  EXPECT_NE(digest_of(std::vector<float>{0}), digest_of(std::vector<float>{0, 0}));
  EXPECT_NE(digest_of(std::vector<float>{0.0f}), digest_of(std::vector<float>{-0.0f}));
  // Two changed signs in one lane, which a plain multiply-and-xor would not see.
  std::vector<float> values(32, 1.0f), other = values;
  other[1] = other[9] = -1.0f;
  EXPECT_NE(digest_of(values), digest_of(other));
  EXPECT_NE(digest_of({}), 0u);
}

}  // namespace
}  // namespace poseidon::digest_test
