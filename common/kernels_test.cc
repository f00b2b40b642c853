#include "common/kernels.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "common/float16.h"
#include "common/random.h"
#include "gtest/gtest.h"

namespace poseidon {
namespace {

// Every variant that this processor can run, against the definition one element at a time.

constexpr std::size_t kGuard = 8;  ///< elements on both sides that no kernel may touch
constexpr std::size_t kBig = 70'003;

/// 0 to 100 covers every remainder of every unrolled loop.
std::vector<std::size_t> sizes() {
  std::vector<std::size_t> sizes(101);
  std::iota(sizes.begin(), sizes.end(), std::size_t{0});
  sizes.insert(sizes.end(), {1023, 4096, kBig});
  return sizes;
}

/// Any bits: all exponents, denormals, infinities, NaNs; every third an ordinary number.
float any_float(SplitMix64& random) {
  switch (random.next() % 6) {
    case 0:
    case 1:
      return static_cast<float>(random.uniform()) - 0.5f;
    case 2: {
      constexpr std::uint32_t kSpecial[] = {0x00000000, 0x80000000, 0x7F800000, 0xFF800000,
                                            0x7FC00001, 0xFFC12345, 0x7F800001, 0xFF812345,
                                            0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF,
                                            0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001};
      return std::bit_cast<float>(kSpecial[random.next() % std::size(kSpecial)]);
    }
    default:
      return std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
  }
}

std::vector<float> any_floats(SplitMix64& random, std::size_t size) {
  std::vector<float> floats(size);
  for (float& value : floats) value = any_float(random);
  return floats;
}

/// The same bits; of arithmetic it is enough that both are NaN (see kernels.h).
bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

void expect_same(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(same(got[i], expected[i]))
        << "element " << i << ": " << got[i] << ", expected " << expected[i];
  }
}

/// The bytes of `values`, `offset` bytes from an aligned address.
template <typename T>
class Payload {
 public:
  Payload(const std::vector<T>& values, std::size_t offset)
      : bytes_(values.size() * sizeof(T) + offset), offset_(offset) {
    if (!values.empty()) {
      std::memcpy(bytes_.data() + offset, values.data(), values.size() * sizeof(T));
    }
  }
  const std::byte* data() const { return bytes_.data() + offset_; }

 private:
  std::vector<std::byte> bytes_;
  std::size_t offset_;
};

class EveryKernel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const Kernels* const supported : supported_kernels()) {
      if (supported->name == GetParam()) kernels_ = supported;
    }
    if (kernels_ == nullptr) GTEST_SKIP() << "this processor has no " << GetParam();
  }
  const Kernels* kernels_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(All, EveryKernel, testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& test) { return test.param; });

TEST(Kernels, TheBestComesLast) {
  ASSERT_FALSE(supported_kernels().empty());
  EXPECT_STREQ(supported_kernels().front()->name, "baseline");
  EXPECT_EQ(&kernels(), supported_kernels().back());
}

TEST_P(EveryKernel, CopiesPastTheCaches) {
  std::vector<std::byte> from(5000), before(5200, std::byte{0xEE});
  SplitMix64 random(1);
  for (std::byte& byte : from) byte = static_cast<std::byte>(random.next());
  for (const std::size_t bytes : {0, 1, 3, 15, 16, 63, 64, 65, 127, 128, 129, 200, 1000, 4800}) {
    for (std::size_t to_offset = 0; to_offset < 65; ++to_offset) {
      for (const std::size_t from_offset : {0, 1, 2, 3, 4, 9, 31, 63}) {
        std::vector<std::byte> to = before;
        kernels_->copy_past_caches(to.data() + to_offset, from.data() + from_offset, bytes);
        kernels_->order_stores();
        std::vector<std::byte> expected = before;
        std::memcpy(expected.data() + to_offset, from.data() + from_offset, bytes);
        ASSERT_EQ(to, expected) << bytes << " bytes from " << from_offset << " to " << to_offset;
      }
    }
  }
}

TEST_P(EveryKernel, Adds) {
  SplitMix64 random(2);
  for (const std::size_t size : sizes()) {
    for (std::size_t offset = 0; offset < 4; ++offset) {
      const std::size_t first = random.next() % kGuard;  // sums are aligned as floats are
      const std::vector<float> values = any_floats(random, size);
      std::vector<float> sum = any_floats(random, size + 2 * kGuard);
      std::vector<float> expected = sum;
      for (std::size_t i = 0; i < size; ++i) expected[first + i] += values[i];
      kernels_->add(sum.data() + first, Payload(values, offset).data(), size);
      ASSERT_NO_FATAL_FAILURE(expect_same(sum, expected)) << size << " at " << offset;
    }
  }
}

// ---- 16 bits ----

struct Format {
  std::uint16_t (*to)(float);
  float (*from)(std::uint16_t);
  void (*Kernels::*array_to)(std::uint16_t*, const float*, std::size_t);
  void (*Kernels::*array_from)(float*, const std::byte*, std::size_t);
  void (*Kernels::*array_add)(float*, const std::byte*, std::size_t);
};

const Format kFormats[] = {
    {[](float value) { return to_bfloat16(value); },
     [](std::uint16_t value) { return from_bfloat16(value); }, &Kernels::to_bfloat16,
     &Kernels::from_bfloat16, &Kernels::add_bfloat16},
    {[](float value) { return to_float16(value); },
     [](std::uint16_t value) { return from_float16(value); }, &Kernels::to_float16,
     &Kernels::from_float16, &Kernels::add_float16},
};

TEST_P(EveryKernel, ReadsEvery16BitValue) {
  std::vector<std::uint16_t> all(0x10000);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  for (const Format& format : kFormats) {
    for (std::size_t offset = 0; offset < 2; ++offset) {
      std::vector<float> got(all.size());
      (kernels_->*format.array_from)(got.data(), Payload(all, offset).data(), all.size());
      for (const std::uint16_t value : all) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got[value]),
                  std::bit_cast<std::uint32_t>(format.from(value)))
            << value;
      }
    }
  }
}

TEST_P(EveryKernel, ConvertsArraysOfEverySize) {
  SplitMix64 random(3);
  for (const Format& format : kFormats) {
    for (const std::size_t size : sizes()) {
      const std::size_t first = random.next() % kGuard;
      const std::vector<float> values = any_floats(random, size);
      std::vector<std::uint16_t> halves(size + 2 * kGuard, 0xABCD);
      std::vector<std::uint16_t> expected_halves = halves;
      for (std::size_t i = 0; i < size; ++i) expected_halves[first + i] = format.to(values[i]);
      (kernels_->*format.array_to)(halves.data() + first, values.data(), size);
      ASSERT_EQ(halves, expected_halves) << size;

      halves.resize(size);
      for (std::uint16_t& half : halves) half = static_cast<std::uint16_t>(random.next());
      for (std::size_t offset = 0; offset < 2; ++offset) {
        const Payload payload(halves, offset);
        std::vector<float> sum = any_floats(random, size + 2 * kGuard);
        std::vector<float> read = sum, expected_sum = sum, expected_read = sum;
        for (std::size_t i = 0; i < size; ++i) {
          expected_read[first + i] = format.from(halves[i]);
          expected_sum[first + i] += expected_read[first + i];
        }
        (kernels_->*format.array_from)(read.data() + first, payload.data(), size);
        (kernels_->*format.array_add)(sum.data() + first, payload.data(), size);
        ASSERT_EQ(0, std::memcmp(read.data(), expected_read.data(), read.size() * sizeof(float)))
            << size;
        ASSERT_NO_FATAL_FAILURE(expect_same(sum, expected_sum)) << size;
      }
    }
  }
}

/// Around every 16-bit value and every tie between two: where rounding can go wrong.
TEST_P(EveryKernel, RoundsAsTheReference) {
  std::vector<float> values;
  for (const Format& format : kFormats) {
    for (std::uint32_t half = 0; half <= 0xFFFF; ++half) {
      const auto bits = std::bit_cast<std::uint32_t>(format.from(static_cast<std::uint16_t>(half)));
      for (const std::uint32_t tie : {0u, 0x1000u, 0x8000u}) {
        for (const std::uint32_t step : {0xFFFFFFFFu, 0u, 1u}) {
          values.push_back(std::bit_cast<float>((bits | tie) + step));
        }
      }
    }
  }
  for (const Format& format : kFormats) {
    std::vector<std::uint16_t> got(values.size());
    (kernels_->*format.array_to)(got.data(), values.data(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(got[i], format.to(values[i])) << std::hexfloat << values[i];
    }
  }
}

}  // namespace
}  // namespace poseidon
