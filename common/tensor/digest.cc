#include "common/tensor/digest.h"

#include <array>
#include <bit>
#include <cstring>

namespace poseidon {

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

}  // namespace poseidon
