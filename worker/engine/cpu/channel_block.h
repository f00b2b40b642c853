#pragma once

// The layout in which this processor's convolutions are fastest. Any thread.
//
// Called by: the CPU device's operators. Calls: oneDNN.

#include <cstdint>

namespace poseidon {

/// Channels side by side in Layout::kDevice on the CPU: 16 or 8, as many floats as this processor's
/// vectors have (n x c/16 x h x w x 16); 1 where oneDNN prefers plain tensors.
std::int64_t channel_block();

}  // namespace poseidon
