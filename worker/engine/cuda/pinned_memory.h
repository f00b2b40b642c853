#pragma once

// Pinned host memory, from and to which a GPU copies directly. It is the program's own memory,
// pinned in place, so that messages can be sent from it. Other processes read it through shared
// memory, without CUDA.
//
// Called by: worker/engine/cuda/cuda_device.cc and worker/engine/cuda/cuda_factors.h. Calls: CUDA.

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/engine/cuda/cuda_context.h"
#include "worker/engine/plugin/device_plugin_entry.h"

namespace poseidon {

/// Set once, when the program loads the plug-in, before anything else is called.
extern const DevicePluginHost* program;

/// Zeroed, whole pages of its own. Memory that cannot be pinned is as good, but slow: the first
/// time the log says so. May be freed on any thread, and outlive the context. RESOURCE_EXHAUSTED
/// when there is none.
absl::StatusOr<DeviceMemory> allocate_pinned(const CudaContext& context, std::int64_t bytes);

}  // namespace poseidon
