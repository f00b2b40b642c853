#include "worker/engine/half_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/base/random.h"
#include "common/tensor/float16.h"
#include "gtest/gtest.h"

namespace poseidon::half_scale_test {
namespace {

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

TEST(HalfScale, BringsTheLargestMagnitudeJustBelowTheLimit) {
  SplitMix64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const int exponent = static_cast<int>(random.next() % 200) - 100;
    const float largest = std::ldexp(1.0f + static_cast<float>(random.uniform()), exponent);
    const int limit = static_cast<int>(random.next() % 24) - 8;
    const HalfScale scale = half_scale(bits_of(largest), limit);
    EXPECT_LT(largest * scale.scale, std::ldexp(1.0f, limit)) << largest;
    EXPECT_GE(largest * scale.scale, std::ldexp(0.5f, limit)) << largest;
    EXPECT_EQ(scale.scale * scale.inverse, 1.0f);
    EXPECT_EQ(largest * scale.scale * scale.inverse, largest) << "nothing is rounded";
  }
}

TEST(HalfScale, EveryFloatHasOne) {
  for (const float value : {std::numeric_limits<float>::denorm_min(), 1e-40f,
                            std::numeric_limits<float>::min(), std::numeric_limits<float>::max()}) {
    for (const int limit : {-8, 0, 15}) {
      const HalfScale scale = half_scale(bits_of(value), limit);
      EXPECT_TRUE(std::isnormal(scale.scale) && std::isnormal(scale.inverse)) << value;
      EXPECT_EQ(scale.scale * scale.inverse, 1.0f);
      if (value < 1.0f) {
        EXPECT_LT(value * scale.scale, std::ldexp(1.0f, limit));
      }
    }
  }
}

TEST(HalfScale, WhatIsNoNumberStaysAsItIs) {
  for (const float value :
       {0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(half_scale(bits_of(value), 3).scale, 1.0f) << value;
    EXPECT_EQ(half_scale(bits_of(value), 3).inverse, 1.0f) << value;
  }
}

TEST(HalfLimit, NoSumOfProductsCanOverflow) {
  for (const std::int64_t depth : {1, 2, 3, 27, 576, 4608, 401408, 3211264, 1 << 30}) {
    const int one = half_limit(depth), other = half_limit_beside(one, depth);
    const double most = static_cast<double>(depth) * std::ldexp(1.0, one) * std::ldexp(1.0, other);
    EXPECT_LE(most, std::ldexp(1.0, kHalfSumBits)) << depth;
    EXPECT_GT(most, std::ldexp(1.0, kHalfSumBits - 2)) << depth << ": nothing is given away";
    EXPECT_LE(other - one, 1) << depth;
    EXPECT_GE(other, one) << depth;
  }
  EXPECT_EQ(half_limit_beside(-100, 1), kHalfSumBits) << "a factor must fit, too";
}

/// Sums of products as a device forms them: factors scaled and in float16, sums in float32 or
/// better, results in float16 and scaled back.
class HalfProductTest : public ::testing::Test {
 protected:
  struct Tensor {
    std::vector<float> values;
    HalfScale scale;

    float as_half(std::size_t i) const { return from_float16(to_float16(values[i] * scale.scale)); }
  };
  /// Magnitudes of `exponent`, some far below.
  Tensor tensor(std::size_t size, int exponent, int limit, bool positive) {
    Tensor made;
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const double sign = positive || random_.uniform() < 0.5 ? 1.0 : -1.0;
      const double spread = positive ? 0.0 : -8.0 * random_.uniform();
      const double value = sign * (0.5 + 0.5 * random_.uniform()) * std::exp2(exponent + spread);
      made.values.push_back(static_cast<float>(value));
      largest = std::max(largest, bits_of(std::abs(made.values.back())));
    }
    made.scale = half_scale(largest, limit);
    return made;
  }
  struct Product {
    double wanted = 0.0, got = 0.0;
    double magnitudes = 0.0;  ///< sum of the products'
  };
  static Product product(const Tensor& a, const Tensor& b) {
    Product result;
    double sum = 0.0;
    for (std::size_t i = 0; i < a.values.size(); ++i) {
      const double exact = static_cast<double>(a.values[i]) * b.values[i];
      result.wanted += exact;
      result.magnitudes += std::abs(exact);
      sum += static_cast<double>(a.as_half(i)) * b.as_half(i);
    }
    const float stored = from_float16(to_float16(static_cast<float>(sum)));
    result.got = static_cast<double>(stored * a.scale.inverse * b.scale.inverse);
    return result;
  }
  SplitMix64 random_{7};
};

TEST_F(HalfProductTest, SmallGradientsAreNotLost) {
  for (const int exponent : {-40, -20, 0, 12, 30}) {
    for (const std::size_t depth : {1u, 9u, 576u, 50176u}) {
      const int limit = half_limit(static_cast<std::int64_t>(depth));
      const Tensor a = tensor(depth, exponent, limit, false);
      const Tensor b =
          tensor(depth, -3, half_limit_beside(limit, static_cast<std::int64_t>(depth)), false);
      const Product p = product(a, b);
      // Two factors and the result, each by 2^-11 of itself at most, and what is subnormal.
      EXPECT_NEAR(p.got, p.wanted, 3.1 * std::exp2(-11) * p.magnitudes)
          << "2^" << exponent << ", depth " << depth;
    }
  }
}

TEST_F(HalfProductTest, TheWorstSumsStayFinite) {
  for (const std::size_t depth : {1u, 9u, 576u, 50176u, 401408u}) {
    const int limit = half_limit(static_cast<std::int64_t>(depth));
    for (const int exponent : {-60, 0, 60}) {
      const Tensor a = tensor(depth, exponent, limit, true);
      const Tensor b =
          tensor(depth, 0, half_limit_beside(limit, static_cast<std::int64_t>(depth)), true);
      const Product p = product(a, b);
      ASSERT_TRUE(std::isfinite(p.got)) << "2^" << exponent << ", depth " << depth;
      EXPECT_NEAR(p.got, p.wanted, 3.1 * std::exp2(-11) * p.magnitudes);
    }
  }
}

}  // namespace
}  // namespace poseidon::half_scale_test
