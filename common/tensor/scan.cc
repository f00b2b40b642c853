#include "common/tensor/scan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"

namespace poseidon {

bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7F800000;
  std::uint32_t wrong = 0;  // no early exit: this way it vectorises
  for (const float value : values) {
    wrong |= (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1u : 0u;
  }
  return wrong == 0;
}

bool all_finite_16(ElementType type, std::span<const std::byte> encoded) {
  POSEIDON_CHECK(element_bytes(type) == 2, "a type of 16 bits");
  // What is not finite has all exponent bits set; positive, so a signed maximum finds it.
  const std::int16_t exponent = type == ElementType::kBfloat16 ? 0x7F80 : 0x7C00;
  std::int16_t highest = 0;
  for (std::size_t at = 0; at + sizeof highest <= encoded.size(); at += sizeof highest) {
    std::int16_t bits;
    std::memcpy(&bits, encoded.data() + at, sizeof bits);
    highest = std::max(highest, static_cast<std::int16_t>(bits & exponent));
  }
  return highest != exponent;
}

std::uint64_t digest_of(std::span<const float> values) {
  constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio, odd
  constexpr std::size_t kLanes = 4;
  constexpr std::size_t kLaneFloats = 2;
  // Large beginnings: a word that equals its lane gives 0, and no word of floats is likely to.
  std::array<std::uint64_t, kLanes> lanes{kMultiplier, ~kMultiplier, kMultiplier << 1,
                                          ~(kMultiplier << 1)};
  // Folds the 128-bit product: every bit of word and lane reaches every bit of the result.
  const auto mix = [](std::uint64_t& lane, std::uint64_t word) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = Wide{lane ^ word} * kMultiplier;
    lane = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  };
  std::size_t at = 0;
  for (; at + kLanes * kLaneFloats <= values.size(); at += kLanes * kLaneFloats) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), values.data() + at, sizeof(words));
    for (std::size_t lane = 0; lane < kLanes; ++lane) mix(lanes[lane], words[lane]);
  }
  for (; at < values.size(); ++at) mix(lanes[0], std::bit_cast<std::uint32_t>(values[at]));
  std::uint64_t digest = values.size();
  for (const std::uint64_t lane : lanes) mix(digest, lane);
  return digest == 0 ? 1 : digest;
}

void SquareSum::add(std::span<const float> values) {
  const auto one = [this](float value) {
    lanes_[at_] += static_cast<double>(value) * static_cast<double>(value);
    at_ = (at_ + 1) % kLanes;
  };
  std::size_t i = 0;
  for (; i < values.size() && at_ != 0; ++i) one(values[i]);
  std::array<double, kLanes> lanes = lanes_;  // a copy, which stays in registers
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  lanes_ = lanes;
  for (; i < values.size(); ++i) one(values[i]);
}

double SquareSum::total() const {
  return ((lanes_[0] + lanes_[1]) + (lanes_[2] + lanes_[3])) +
         ((lanes_[4] + lanes_[5]) + (lanes_[6] + lanes_[7]));
}

double square_sum(std::span<const float> values) {
  SquareSum sum;
  sum.add(values);
  return sum.total();
}

}  // namespace poseidon
