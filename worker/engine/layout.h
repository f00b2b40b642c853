#pragma once

// The layouts of tensors between layers. Separate from device.h so that kernels can include it
// alone.
//
// Called by: worker/engine/device.h and the CUDA kernels. Calls: nothing.

#include <cstdint>

namespace poseidon {

/// How the tensor between two layers, and its gradient, is laid out.
enum class Layout {
  kPlain,  ///< C-contiguous, batch first: N x C x H x W or N x F
  /// The device's own choice for images of that shape; as many bytes, one sample after the other.
  kDevice,
  kBfloat16,      ///< images, channels last (N x H x W x C), of bfloat16
  kChannelsLast,  ///< images, N x H x W x C, of float
};

constexpr bool has_channels_last(Layout layout) {
  return layout == Layout::kBfloat16 || layout == Layout::kChannelsLast;
}

constexpr std::int64_t bytes_per_element(Layout layout) {
  return layout == Layout::kBfloat16 ? 2 : 4;
}

}  // namespace poseidon
