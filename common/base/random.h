#pragma once

// The source of all randomness in a run. It avoids <random>, whose distributions differ between
// libraries, so that a run can be repeated bit for bit years later and in any language. Pure. One
// generator belongs to one thread.
//
// Called by: worker/data, models/net/initialise.h, common/transport/memory_transport.h and others.
// Calls: nothing.

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace poseidon {

/// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
/// Chosen because three lines reproduce it in any language: everything random in a run (permutation
/// of the data, initial weights, dropout, crops) is a function of the job's seeds alone.
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() {
    state_ += kStep;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  /// Skips `draws` values in constant time, so that several threads can fill parts of one range.
  constexpr void skip(std::uint64_t draws) { state_ += draws * kStep; }

  /// Uniform in [0, bound), bound > 0, by Lemire's multiply-shift without rejection: the bias of
  /// bound / 2^64 is below anything a run could show, and the sequence stays easy to reproduce.
  constexpr std::uint64_t below(std::uint64_t bound) {
    __extension__ using Wide = unsigned __int128;  // GCC's and Clang's; C++20 has no name for it
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * bound) >> 64);
  }

  /// Uniform in [0, 1) with 24 random bits: exact in float.
  constexpr float uniform() { return static_cast<float>(next() >> 40) * 0x1.0p-24f; }

  static constexpr std::uint64_t kDrawsPerNormal = 2;
  /// Standard normal (Box-Muller, the cosine branch; two draws per value).
  double normal() {
    const double u = (static_cast<double>(next() >> 11) + 0.5) * 0x1.0p-53;
    const double v = static_cast<double>(next() >> 11) * 0x1.0p-53;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
  }

 private:
  static constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ull;

  std::uint64_t state_;
};

/// One seed out of several numbers, e.g. (job seed, iteration, sample): order matters.
constexpr std::uint64_t mix_seed(std::uint64_t a, std::uint64_t b) {
  return SplitMix64(SplitMix64(a).next() ^ (b + 0x9E3779B97F4A7C15ull)).next();
}

/// Turns names into seeds and numbers that are the same in every process and language.
constexpr std::uint64_t fnv1a_64(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  }
  return hash;
}

}  // namespace poseidon
