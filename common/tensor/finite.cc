#include "common/tensor/finite.h"

#include <algorithm>
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

}  // namespace poseidon
