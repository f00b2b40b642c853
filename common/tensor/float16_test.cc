#include "common/tensor/float16.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace poseidon::float16_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Of all 65536 values of a format the nearest to `value`, ties to the even one: by the definition,
/// in double, where every difference of interest is exact.
template <typename From>
float nearest_of_neighbours(float value, std::uint16_t candidate, From from) {
  double best = from(candidate);
  double best_error = std::abs(best - static_cast<double>(value));
  bool best_even = candidate % 2 == 0;
  for (const int step : {-1, 1}) {
    const auto other = static_cast<std::uint16_t>(candidate + step);
    if ((other & 0x8000) != (candidate & 0x8000)) continue;
    const double neighbour = from(other);
    if (!std::isfinite(neighbour)) continue;
    const double error = std::abs(neighbour - static_cast<double>(value));
    if (error < best_error || (error == best_error && !best_even)) {
      best = neighbour;
      best_error = error;
      best_even = other % 2 == 0;
    }
  }
  return static_cast<float>(best);
}

TEST(Float16, EveryValueComesBackAsItWas) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const auto value = static_cast<std::uint16_t>(bits);
    if (std::isnan(from_float16(value))) {
      EXPECT_EQ(to_float16(from_float16(value)), value | 0x200) << bits;
    } else {
      ASSERT_EQ(to_float16(from_float16(value)), value) << bits;
    }
    if (std::isnan(from_bfloat16(value))) {
      EXPECT_EQ(to_bfloat16(from_bfloat16(value)), value | 0x40) << bits;
    } else {
      ASSERT_EQ(to_bfloat16(from_bfloat16(value)), value) << bits;
    }
  }
}

TEST(Float16, KnownValues) {
  EXPECT_EQ(from_float16(0x3C00), 1.0f);
  EXPECT_EQ(from_float16(0x7BFF), 65504.0f);
  EXPECT_EQ(from_float16(0x0400), 0x1p-14f);
  EXPECT_EQ(from_float16(0x0001), 0x1p-24f);
  EXPECT_EQ(from_float16(0xC000), -2.0f);
  EXPECT_EQ(from_bfloat16(0x3F80), 1.0f);
  EXPECT_EQ(from_bfloat16(0xC040), -3.0f);
  EXPECT_EQ(to_float16(65519.0f), 0x7BFF);
  EXPECT_EQ(to_float16(65520.0f), 0x7C00);
  EXPECT_EQ(to_float16(-1e30f), 0xFC00);
  EXPECT_EQ(to_float16(0x1p-25f), 0x0000) << "a tie goes to even, which is zero";
  EXPECT_EQ(to_float16(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(to_float16(0x1.8p-24f), 0x0002) << "a tie goes to even, which is two units";
  EXPECT_EQ(to_float16(-0.0f), 0x8000);
  EXPECT_EQ(to_bfloat16(-0.0f), 0x8000);
  EXPECT_EQ(to_bfloat16(kInfinity), 0x7F80);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()), 0x7F80) << "rounds up to infinity";
  EXPECT_EQ(to_float16(kInfinity), 0x7C00);
}

TEST(Float16, RoundsToTheNearestAndTiesToEven) {
  std::mt19937 random(7);
  for (int i = 0; i < 2'000'000; ++i) {
    // Any exponent that float16 knows, ties and their neighbours often.
    std::uint32_t bits = random();
    bits = (bits & 0x807FFFFF) | ((100 + random() % 45) << 23);
    if (i % 2 == 0) bits = (bits & ~0x1FFFu) | 0x1000;
    if (i % 6 == 0) bits += i % 12 == 0 ? 1 : -1;
    const float value = std::bit_cast<float>(bits);
    if (std::abs(value) < 65504.0f) {
      ASSERT_EQ(from_float16(to_float16(value)),
                nearest_of_neighbours(value, to_float16(value), from_float16))
          << value;
    }
    if (i % 2 == 0) bits = (bits & ~0xFFFFu) | 0x8000;
    const float other = std::bit_cast<float>(bits);
    ASSERT_EQ(from_bfloat16(to_bfloat16(other)),
              nearest_of_neighbours(other, to_bfloat16(other), from_bfloat16))
        << other;
  }
}

TEST(Float16, NotANumberStaysOne) {
  for (const std::uint32_t bits : {0x7F800001u, 0x7FC00000u, 0xFFFFFFFFu, 0x7F801000u}) {
    const float value = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(from_float16(to_float16(value)))) << bits;
    EXPECT_TRUE(std::isnan(from_bfloat16(to_bfloat16(value)))) << bits;
  }
}

}  // namespace
}  // namespace poseidon::float16_test
