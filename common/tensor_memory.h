#pragma once

// Where tensors that will be sent are allocated: shared memory once the process has an arena, the
// heap before and otherwise. Process-wide, like the heap that it stands in for.

#include <cstddef>

#include "common/shared_arena.h"

namespace poseidon {

/// From now on allocate_tensor_memory takes from a new arena as large as the machine's memory.
/// Called by a daemon's main(), once, first. FAILED_PRECONDITION when this machine cannot; then all
/// stays as it was.
absl::Status share_tensor_memory();

/// The process's arena; nullptr without.
SharedArena* tensor_arena();

/// Zeroed and aligned to kBufferAlignmentBytes at least; nullptr when there is no memory. Any
/// thread.
void* allocate_tensor_memory(std::size_t bytes);
void free_tensor_memory(void* memory);

}  // namespace poseidon
