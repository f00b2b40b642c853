#include "common/base/median.h"

#include "gtest/gtest.h"

namespace poseidon::median_test {
namespace {

TEST(Median, IsInTheMiddle) {
  EXPECT_EQ(median({}), 0.0);
  EXPECT_EQ(median({7.0}), 7.0);
  EXPECT_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({2.0, 1.0}), 1.5);
  EXPECT_EQ(median({4.0, 1.0, 2.0, 3.0}), 2.5);
}

}  // namespace
}  // namespace poseidon::median_test
