#pragma once

// Looks for NaN and infinities. Pure.

#include <cstddef>
#include <span>

#include "common/tensor/element_type.h"

namespace poseidon {

/// False when there is a NaN or an infinity among them.
bool all_finite(std::span<const float> values);

/// Likewise, of elements of a 16-bit `type`.
bool all_finite_16(ElementType type, std::span<const std::byte> encoded);

}  // namespace poseidon
