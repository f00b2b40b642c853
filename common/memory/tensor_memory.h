#pragma once

// Allocates tensors that will be sent: from shared memory once the process has an arena, otherwise
// from the heap. Process-wide, like the heap.
//
// Called by: common/memory/aligned_buffer.h and executors, for memory that they send from;
// common/transport/paced_transport.h looks payloads up in the arena. Calls:
// common/memory/shared_arena.h.

#include <cstddef>

#include "common/memory/shared_arena.h"

namespace poseidon {

/// Makes allocate_tensor_memory use a new arena as large as the machine's memory. A daemon's main()
/// calls it once, first. FAILED_PRECONDITION when the machine does not support it; the heap is used
/// then.
absl::Status share_tensor_memory();

/// The process's arena; nullptr when it has none.
SharedArena* tensor_arena();

/// Zeroed and aligned to kBufferAlignmentBytes at least; nullptr when there is no memory. Any
/// thread.
void* allocate_tensor_memory(std::size_t bytes);
void free_tensor_memory(void* memory);

/// For the end of streams. Peers may read payloads in shared memory until the epoch is over, but
/// once the streams have ended this process no longer knows which peers read them. Between these
/// two calls, freed memory keeps its content (SharedArena::keep_freed). Before the process ends,
/// only the first is called. No effect without an arena.
void keep_freed_tensor_memory();
void reclaim_tensor_memory();

}  // namespace poseidon
