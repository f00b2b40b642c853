#pragma once

// Looks for NaN and infinities. Pure.
//
// 16-bit wire types have a test of their own, on the encoded elements: all_finite_16 in wire.h.

#include <span>

namespace poseidon {

/// False when there is a NaN or an infinity among them.
bool all_finite(std::span<const float> values);

}  // namespace poseidon
