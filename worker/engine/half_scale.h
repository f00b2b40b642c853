#pragma once

// Chooses the power of two by which a tensor is multiplied before it is rounded to float16, whose
// range is small: values below 2^-24 become 0, values from 65520 on infinite. Pure; the same code
// for all processors.
//
// Gradients are small, so float16 without scales does not train. The usual remedy is one scale for
// the whole loss (Micikevicius et al. 2018, "Mixed precision training", section 3.2), found by
// trial: after an overflow the step is skipped. Here layers' gradients are sent while the layers
// below still compute, so a step cannot be undone. Instead every tensor has a scale of its own,
// from its largest magnitude now (as FP8 training does: Micikevicius et al. 2022, "FP8 formats for
// deep learning", section 3.1), so that no sum of products can overflow either. There are no
// trials, lost steps or state, and multiplying by powers of two is exact.
//
// Called by: products in float16, with a tensor's largest magnitude; they multiply the result by
// the inverses of both factors' scales. Calls: nothing.

#include <bit>
#include <cstdint>

#if defined(__CUDACC__)
#define POSEIDON_BOTH_SIDES __host__ __device__ inline
#else
#define POSEIDON_BOTH_SIDES inline
#endif

namespace poseidon {

/// Powers of two; their product is 1.
struct HalfScale {
  float scale = 1.0f;
  float inverse = 1.0f;
};

namespace half_scale_internal {
inline constexpr std::uint32_t kInfinity = 0x7F800000;  ///< as bits; NaNs are above
inline constexpr int kLargestPower = 126;               ///< whose inverse is a normal float
}  // namespace half_scale_internal

/// The scale by which all magnitudes of a tensor fall below 2^limit, the largest by less than a
/// factor of 2; but for what is below 2^(limit - kLargestPower), which falls lower, and beyond
/// 2^(limit + kLargestPower), which stays above. `largest_bits`: the bits of its largest magnitude.
/// A tensor with infinities or NaNs is not scaled, so that they remain visible.
POSEIDON_BOTH_SIDES HalfScale half_scale(std::uint32_t largest_bits, int limit) {
  using namespace half_scale_internal;
  if (largest_bits == 0 || largest_bits >= kInfinity) return {};
  const int bound = static_cast<int>(largest_bits >> 23) - 126;  // the magnitude is below 2^bound
  int power = limit - bound;
  if (power > kLargestPower) power = kLargestPower;
  if (power < -kLargestPower) power = -kLargestPower;
#if defined(__CUDA_ARCH__)
  return {.scale = __uint_as_float(static_cast<std::uint32_t>(127 + power) << 23),
          .inverse = __uint_as_float(static_cast<std::uint32_t>(127 - power) << 23)};
#else
  return {.scale = std::bit_cast<float>(static_cast<std::uint32_t>(127 + power) << 23),
          .inverse = std::bit_cast<float>(static_cast<std::uint32_t>(127 - power) << 23)};
#endif
}

// ---- limits, on the host ----

/// Sums of products stay within +-2^kHalfSumBits; float16 ends at 65504.
inline constexpr int kHalfSumBits = 15;

/// So that no sum of `depth` products, one factor below 2^limit and the other below 2^`other`, can
/// reach 2^kHalfSumBits.
inline int half_limit_beside(int other, std::int64_t depth) {
  const int depth_bits = std::bit_width(static_cast<std::uint64_t>(depth > 1 ? depth - 1 : 0));
  const int limit = kHalfSumBits - depth_bits - other;
  return limit < kHalfSumBits ? limit : kHalfSumBits;
}
/// For one of the factors, when both shall have about the same.
inline int half_limit(std::int64_t depth) {
  const int both = half_limit_beside(0, depth);
  return both >= 0 ? both / 2 : -((1 - both) / 2);  // rounded down
}

}  // namespace poseidon

#undef POSEIDON_BOTH_SIDES
