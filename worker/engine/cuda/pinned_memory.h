#pragma once

// Host memory that a GPU copies from and to by itself: the program's, so that it can be sent from,
// and pinned where it lies. Processes that read it through shared memory do so past CUDA.

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
