#include "worker/engine/cuda/pinned_memory.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "worker/engine/cuda/cuda_status.h"

namespace poseidon {

const DevicePluginHost* program = nullptr;

namespace {

constexpr std::size_t kPageBytes = 4096;

/// Lies in front of the memory, in a page that is not pinned: pinned ranges are whole pages of
/// their own, whatever lies beside them.
struct PinnedHeader {
  void* allocated = nullptr;
  int ordinal = 0;
  bool is_pinned = false;
};

PinnedHeader& header_of(void* memory) {
  return *reinterpret_cast<PinnedHeader*>(static_cast<std::byte*>(memory) - sizeof(PinnedHeader));
}

// Before the pages are freed, because pinned memory must stay mapped. A GPU that has stopped may
// still write to it, and would be waited for.
void free_pinned(void* memory) {
  if (!CudaContext::patience().ok()) return;
  const PinnedHeader header = header_of(memory);
  if (header.is_pinned) {
    CudaContext::use(header.ordinal);
    cuda_status(cudaHostUnregister(memory), "cudaHostUnregister").IgnoreError();
  }
  program->free_tensor_memory(header.allocated);
}

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

absl::StatusOr<DeviceMemory> allocate_pinned(const CudaContext& context, std::int64_t bytes) {
  const std::size_t size = whole_pages(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  void* const allocated = program->allocate_tensor_memory(size + 2 * kPageBytes);
  if (allocated == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes, " bytes of host memory for copies to the GPU"));
  }
  std::byte* const begin = static_cast<std::byte*>(allocated) + sizeof(PinnedHeader);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  void* const memory = begin + (whole_pages(address) - address);
  context.use();
  const cudaError_t error = cudaHostRegister(memory, size, cudaHostRegisterPortable);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());       // or the next launch would report it again
    static std::atomic<bool> has_warned{false};  // a network has hundreds of such ranges
    if (!has_warned.exchange(true)) {
      program->warn(absl::StrCat("copies to and from the GPU will be slow: ", bytes,
                                 " bytes of host memory cannot be pinned (",
                                 cudaGetErrorString(error), "); look at ulimit -l"));
    }
  }
  header_of(memory) = {
      .allocated = allocated, .ordinal = context.ordinal(), .is_pinned = error == cudaSuccess};
  return DeviceMemory(memory, free_pinned);
}

}  // namespace poseidon
