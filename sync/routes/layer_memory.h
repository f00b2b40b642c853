#pragma once

// The memory of a layer's gradients and parameters, as the routes use it.
//
// Called by: sync/node/worker_job.h with the engine's memory, and sync/relay/relay.h with its own.
// Calls: nothing; sync/routes/ps_route.h and sync/routes/sfb_route.h send from it and write to it,
// and say when.

#include <memory>
#include <span>

namespace poseidon {

/// Memory of one layer with parameters. It must stay valid until all copies of `owner` are
/// released; a message that is being sent holds one. Not owned otherwise.
struct LayerMemory {
  std::span<float> parameters;       ///< all tensors of the layer end to end
  std::span<const float> gradients;  ///< same layout; not used for an SFB layer
  std::shared_ptr<const void> owner;
};

}  // namespace poseidon
