#include "common/memory/tensor_memory.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "common/base/check.h"
#include "common/base/process_load.h"
#include "common/memory/aligned_buffer.h"

namespace poseidon {
namespace {

/// Never destroyed: tensors may outlive every other static object.
std::atomic<SharedArena*> arena{nullptr};

}  // namespace

absl::Status share_tensor_memory() {
  POSEIDON_CHECK(arena.load() == nullptr, "called once");
  POSEIDON_ASSIGN_OR_RETURN(std::unique_ptr<SharedArena> created,
                            SharedArena::create(installed_memory_bytes()));
  arena.store(created.release());
  return absl::OkStatus();
}

SharedArena* tensor_arena() { return arena.load(); }

void* allocate_tensor_memory(std::size_t bytes) {
  if (SharedArena* shared = tensor_arena()) {
    if (void* memory = shared->allocate(bytes)) return memory;
  }
  const std::size_t size = (bytes / kBufferAlignmentBytes + 1) * kBufferAlignmentBytes;
  void* memory = std::aligned_alloc(kBufferAlignmentBytes, size);
  if (memory != nullptr) std::memset(memory, 0, size);
  return memory;
}

void free_tensor_memory(void* memory) {
  SharedArena* shared = tensor_arena();
  if (shared != nullptr && shared->contains(memory)) {
    shared->free(memory);
  } else {
    std::free(memory);
  }
}

void keep_freed_tensor_memory() {
  if (SharedArena* shared = tensor_arena()) shared->keep_freed();
}

void reclaim_tensor_memory() {
  if (SharedArena* shared = tensor_arena()) shared->reclaim();
}

FloatBuffer FloatBuffer::sendable(std::int64_t elements) {
  void* memory = allocate_tensor_memory(static_cast<std::size_t>(elements) * sizeof(float));
  POSEIDON_CHECK(memory != nullptr, "out of memory");
  FloatBuffer buffer;
  buffer.elements_ = elements;
  buffer.memory_ = std::shared_ptr<float>(static_cast<float*>(memory), free_tensor_memory);
  return buffer;
}

PayloadBuffer PayloadBuffer::sendable(std::size_t bytes) {
  void* memory = allocate_tensor_memory(bytes);
  POSEIDON_CHECK(memory != nullptr, "out of memory");
  PayloadBuffer buffer;
  buffer.size_ = bytes;
  buffer.memory_ = std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), free_tensor_memory);
  return buffer;
}

}  // namespace poseidon
