#include "common/tensor/scan.h"

#include <cmath>
#include <limits>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"

namespace poseidon::square_sum_test {
namespace {

TEST(SquareSum, IsTheSumOfSquares) {
  EXPECT_EQ(square_sum({}), 0.0);
  std::vector<float> values;
  double expected = 0.0;
  for (int i = 1; i <= 100; ++i) {
    values.push_back(static_cast<float>(i));
    expected += i * i;
    EXPECT_EQ(square_sum(values), expected) << "small integers are exact";
  }
}

TEST(SquareSum, AnySplitGivesTheSameBits) {
  SplitMix64 random(1);
  std::vector<float> values(67);
  for (float& value : values) {
    value = static_cast<float>(random.normal() * std::pow(10.0, random.uniform() * 12));
  }
  const double whole = square_sum(values);
  for (std::size_t a = 0; a <= values.size(); ++a) {
    for (std::size_t b = a; b <= values.size(); ++b) {
      SquareSum sum;
      sum.add(std::span(values).subspan(0, a));
      sum.add(std::span(values).subspan(a, b - a));
      sum.add(std::span(values).subspan(b));
      ASSERT_EQ(sum.total(), whole) << a << ", " << b;
    }
  }
}

TEST(SquareSum, DoesNotOverflowWhereFloatsWould) {
  EXPECT_TRUE(std::isfinite(square_sum(std::vector<float>(9, 3e38f))));
  EXPECT_TRUE(std::isinf(square_sum(std::vector<float>{std::numeric_limits<float>::infinity()})));
  EXPECT_TRUE(std::isnan(square_sum(std::vector<float>{std::nanf("")})));
}

}  // namespace
}  // namespace poseidon::square_sum_test
