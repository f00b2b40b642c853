#pragma once

// Where the routes find a layer's gradients and put its parameters.
//
// Before: worker/worker_job.h has the engine's memory, or sync/relay/relay.h its own. After:
// sync/routes/ps_route.h and sfb_route.h send from it and write to it; each says when.

#include <memory>
#include <span>

namespace poseidon {

/// Of one parameter layer. The memory must stay until `owner` is released by everybody: a message
/// that is being sent holds it. Not owned otherwise.
struct LayerMemory {
  std::span<float> parameters;       ///< all tensors of the layer end to end
  std::span<const float> gradients;  ///< same layout; not looked at for a layer that goes by SFB
  std::shared_ptr<const void> owner;
};

}  // namespace poseidon
