#include "common/tensor/kernels.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/tensor/float16.h"
#include "gtest/gtest.h"

namespace poseidon::kernels_test {
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
  std::byte* data() { return bytes_.data() + offset_; }
  const std::byte* data() const { return bytes_.data() + offset_; }
  std::vector<T> values() const {
    std::vector<T> values((bytes_.size() - offset_) / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), data(), values.size() * sizeof(T));
    return values;
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t offset_;
};

class EveryKernel : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const Kernels* const supported : supported_kernels()) {
      if (supported->name == GetParam()) kernels_ = supported;
    }
    if (kernels_ == nullptr) GTEST_SKIP() << "this processor has no " << GetParam();
  }
  const Kernels* kernels_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(All, EveryKernel, ::testing::Values("baseline", "avx2", "avx512"),
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
  void (*Kernels::*array_to)(std::byte*, const float*, std::size_t);
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
      for (std::size_t offset = 0; offset < 2; ++offset) {
        Payload payload(halves, offset);
        std::byte* const to = payload.data() + first * sizeof(std::uint16_t);
        (kernels_->*format.array_to)(to, values.data(), size);
        ASSERT_EQ(payload.values(), expected_halves) << size << " at " << offset;
      }

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
    Payload payload(std::vector<std::uint16_t>(values.size()), 0);
    (kernels_->*format.array_to)(payload.data(), values.data(), values.size());
    const std::vector<std::uint16_t> got = payload.values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(got[i], format.to(values[i])) << std::hexfloat << values[i];
    }
  }
}

// ---- optimizer steps ----

/// The arrays of one step, `size` elements each, with a guard before and after.
struct Arrays {
  Arrays(SplitMix64& random, std::size_t size)
      : sum(any_floats(random, size + 2 * kGuard)),
        last(any_floats(random, size)),
        in(any_floats(random, size + 2 * kGuard)),
        out(any_floats(random, size + 2 * kGuard)),
        state0(any_floats(random, size + 2 * kGuard)),
        state1(any_floats(random, size + 2 * kGuard)) {}
  std::vector<float> sum, last, in, out, state0, state1;
};

struct StepCase {
  std::string name;
  std::function<void(const Kernels&, GradientTerms, const float* in, float* out, float* state0,
                     float* state1, std::size_t size)>
      run;
};

std::vector<StepCase> step_cases() {
  const SgdFactors sgd{
      .gradient_scale = 1.0f / 3, .weight_decay = 0.01f, .learning_rate = 0.1f, .momentum = 0.9f};
  const AdamFactors adam{.gradient_scale = 1.0f / 3,
                         .decay = 0.01f,
                         .rate = 0.37f,
                         .beta1 = 0.9f,
                         .beta2 = 0.999f,
                         .new_share1 = 0.1f,
                         .new_share2 = 0.001f,
                         .correction2_sqrt = 0.03f,
                         .epsilon = 1e-8f};
  std::vector<StepCase> cases;
  cases.push_back(
      {"sgd", [=](const Kernels& with, GradientTerms gradient, const float* in, float* out, float*,
                  float*, std::size_t size) { with.sgd(sgd, gradient, in, out, size); }});
  for (const auto& [name, step] :
       {std::pair{"momentum", &Kernels::momentum}, std::pair{"nesterov", &Kernels::nesterov}}) {
    cases.push_back(
        {name, [=, step = step](const Kernels& with, GradientTerms gradient, const float* in,
                                float* out, float* state0, float*, std::size_t size) {
           (with.*step)(sgd, gradient, in, out, state0, size);
         }});
  }
  for (const auto& [name, step] :
       {std::pair{"adam", &Kernels::adam}, std::pair{"adamw", &Kernels::adamw}}) {
    cases.push_back(
        {name, [=, step = step](const Kernels& with, GradientTerms gradient, const float* in,
                                float* out, float* state0, float* state1, std::size_t size) {
           (with.*step)(adam, gradient, in, out, state0, state1, size);
         }});
  }
  return cases;
}

/// The reference is the baseline, one element at a time; what it computes is compared with PyTorch
/// in optimizer_test.cc.
TEST_P(EveryKernel, StepsAsTheReference) {
  const Kernels& reference = *supported_kernels().front();
  for (const StepCase& step : step_cases()) {
    SCOPED_TRACE(step.name);
    SplitMix64 random(4);
    for (const std::size_t size : sizes()) {
      for (const bool in_place : {false, true}) {
        for (const bool has_sum : {false, true}) {
          const std::size_t first = random.next() % kGuard, offset = random.next() % 4;
          const Arrays before(random, size);
          const Payload last(before.last, offset);
          Arrays got = before, expected = before;
          const auto run = [&](const Kernels& with, Arrays& a, std::size_t at, std::size_t count) {
            const std::size_t i = first + at;
            const GradientTerms gradient{.sum = has_sum ? a.sum.data() + i : nullptr,
                                         .last = last.data() + at * sizeof(float)};
            std::vector<float>& out = in_place ? a.in : a.out;
            step.run(with, gradient, a.in.data() + i, out.data() + i, a.state0.data() + i,
                     a.state1.data() + i, count);
          };
          run(*kernels_, got, 0, size);
          for (std::size_t i = 0; i < size; ++i) run(reference, expected, i, 1);
          ASSERT_NO_FATAL_FAILURE(expect_same(got.in, expected.in)) << size;
          ASSERT_NO_FATAL_FAILURE(expect_same(got.out, expected.out)) << size;
          ASSERT_NO_FATAL_FAILURE(expect_same(got.state0, expected.state0)) << size;
          ASSERT_NO_FATAL_FAILURE(expect_same(got.state1, expected.state1)) << size;
        }
      }
    }
  }
}

}  // namespace
}  // namespace poseidon::kernels_test
