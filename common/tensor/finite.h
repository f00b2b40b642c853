#pragma once

// Checks tensors for NaN and infinities. Pure.
//
// Called by: server/shard/shard.h, sync, worker/trainer.h and worker/engine. Calls: nothing.

#include <cstddef>
#include <span>

#include "common/tensor/element_type.h"

namespace poseidon {

/// False when any value is NaN or infinite.
bool all_finite(std::span<const float> values);

/// The same for elements of a 16-bit `type`.
bool all_finite_16(ElementType type, std::span<const std::byte> encoded);

}  // namespace poseidon
