#pragma once

// Rounds factors as a GPU's tensor cores do, on the host.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

namespace poseidon::emulated {

/// To the nearest of ten bits of significand, ties away from zero (PTX: cvt.rna.tf32.f32).
inline float to_tf32(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7F800000U) == 0x7F800000U) return value;  // infinite or NaN
  bits = (bits + 0x1000U) & ~0x1FFFU;
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

inline float to_bfloat16_and_back(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}

}  // namespace poseidon::emulated
