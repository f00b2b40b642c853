#pragma once

// The two 16-bit floating-point formats, one value at a time: the reference for every faster form.
// Pure.
//
//   bfloat16: 8 exponent bits, 8 significant bits (7 stored): float32's range, relative error of
//             rounding at most 2^-8.
//   float16 (IEEE 754 binary16): 5 exponent bits, 11 significant bits (10 stored): relative error
//             at most 2^-11 from 2^-14 to 65504; below that absolute error at most 2^-25; from
//             65520 on infinite.
// Rounding is to nearest, ties to even. NaN stays NaN (quiet, sign and leading payload bits kept),
// infinity and signed zero stay what they are.
//
// Called by: common/tensor/kernels_body.h and common/files/safetensors.h. Calls: nothing.

#include <cstdint>

// Always inlined, and free of calls: see kernels_body.h, which compiles this for several
// processors.
#define POSEIDON_ALWAYS_INLINE [[gnu::always_inline]] inline

namespace poseidon {

POSEIDON_ALWAYS_INLINE std::uint16_t to_bfloat16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

POSEIDON_ALWAYS_INLINE float from_bfloat16(std::uint16_t value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value) << 16);
}

POSEIDON_ALWAYS_INLINE std::uint16_t to_float16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) {  // NaN
    return static_cast<std::uint16_t>(sign | 0x7E00 | ((magnitude >> 13) & 0x3FF));
  }
  if (magnitude >= 0x477FF000) return static_cast<std::uint16_t>(sign | 0x7C00);  // from 65520 on
  if (magnitude < 0x38800000) {  // below 2^-14: count in units of 2^-24; adding 0.5 lets the
    // float unit do the rounding, because the last bit of values near 0.5 is just that unit
    const float sum = __builtin_bit_cast(float, magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (__builtin_bit_cast(std::uint32_t, sum) - 0x3F000000));
  }
  const std::uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

POSEIDON_ALWAYS_INLINE float from_float16(std::uint16_t value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000) << 16;
  const std::uint32_t magnitude = value & 0x7FFF;
  if (magnitude >= 0x7C00) {  // infinity, NaN
    return __builtin_bit_cast(float, sign | 0x7F800000 | ((magnitude & 0x3FF) << 13) |
                                         (magnitude > 0x7C00 ? 0x400000u : 0u));
  }
  if (magnitude < 0x400) {  // subnormal: a multiple of 2^-24
    const float unsigned_value = static_cast<float>(magnitude) * 0x1p-24f;
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(std::uint32_t, unsigned_value));
  }
  return __builtin_bit_cast(float, sign | ((magnitude << 13) + 0x38000000));
}

#undef POSEIDON_ALWAYS_INLINE

}  // namespace poseidon
