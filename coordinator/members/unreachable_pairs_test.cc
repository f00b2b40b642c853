#include "coordinator/members/unreachable_pairs.h"

#include "gtest/gtest.h"

namespace poseidon::unreachable_pairs_test {
namespace {

constexpr NodeId kA{1}, kB{2}, kC{3}, kD{4};

TEST(UnreachablePairsTest, OnlyWhatWasSaidInAnEarlierEpochLasts) {
  UnreachablePairs pairs;
  EXPECT_FALSE(pairs.known_before(kA, kB, Epoch(7)));
  pairs.add(kA, kB, Epoch(7));
  EXPECT_FALSE(pairs.known_before(kA, kB, Epoch(7))) << "it is the same trouble";
  EXPECT_TRUE(pairs.known_before(kA, kB, Epoch(8)));
  EXPECT_TRUE(pairs.known_before(kB, kA, Epoch(8)));
  EXPECT_TRUE(pairs.known_before(kC, kB, Epoch(8))) << "one of the two";
  EXPECT_FALSE(pairs.known_before(kC, kD, Epoch(8)));
  pairs.add(kB, kA, Epoch(8));
  EXPECT_TRUE(pairs.known_before(kA, kB, Epoch(8))) << "the first time counts";
  pairs.clear();
  EXPECT_FALSE(pairs.known_before(kA, kB, Epoch(9)));
}

TEST(UnreachablePairsTest, WhoIsCutOffFromMoreStandsOut) {
  UnreachablePairs pairs;
  pairs.add(kA, kB, Epoch(7));
  pairs.add(kB, kA, Epoch(7));
  EXPECT_EQ(pairs.count(kA), 1u) << "each says it of the other: one pair";
  EXPECT_EQ(pairs.count(kB), 1u);
  pairs.add(kC, kB, Epoch(7));
  EXPECT_EQ(pairs.count(kB), 2u);
  EXPECT_EQ(pairs.count(kC), 1u);
  EXPECT_EQ(pairs.count(kD), 0u);
}

TEST(UnreachablePairsTest, WhoIsGoneCountsForNobody) {
  UnreachablePairs pairs;
  pairs.add(kA, kB, Epoch(7));
  pairs.add(kC, kB, Epoch(7));
  pairs.forget(kA);
  EXPECT_EQ(pairs.count(kB), 1u);
  EXPECT_TRUE(pairs.known_before(kD, kB, Epoch(8)));
  pairs.forget(kB);
  EXPECT_FALSE(pairs.known_before(kC, kB, Epoch(8)));
}

}  // namespace
}  // namespace poseidon::unreachable_pairs_test
