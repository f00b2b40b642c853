#pragma once

// Where tensors that will be sent are allocated: shared memory once the process has an arena, the
// heap before and otherwise. Process-wide, like the heap that it stands in for.
//
// Before: common/tensor/aligned_buffer.h and executors want memory that is sent from. After:
// common/tensor/shared_arena.h gives it, and common/transport/paced_transport.h finds payloads in
// it.

#include <cstddef>

#include "common/tensor/shared_arena.h"

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

/// For the end of streams: what was sent through shared memory counts where it is until the epoch
/// is over, but nobody here knows any more who still reads it. Between the two, what is freed stays
/// as it is (SharedArena::keep_freed); before the process ends, for good. Nothing without an arena.
void keep_freed_tensor_memory();
void reclaim_tensor_memory();

}  // namespace poseidon
