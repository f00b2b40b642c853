#pragma once

#include <memory>
#include <span>

namespace poseidon {

/// Where one parameter layer lives. The memory must stay until `owner` is released by everybody.
struct LayerMemory {
  std::span<float> parameters;       ///< all tensors of the layer end to end
  std::span<const float> gradients;  ///< same layout; not looked at for a layer that goes by SFB
  std::shared_ptr<const void> owner;
};

}  // namespace poseidon
