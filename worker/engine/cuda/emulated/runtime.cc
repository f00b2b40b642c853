// CUDA's runtime as far as the device uses it: one GPU of 8 GiB, whose memory is the host's. What
// the real one would refuse or answer for is refused: memory of the wrong side, ranges that end
// beyond an allocation, the default stream.

#include <cuda_runtime_api.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/cuda/emulated/stream.h"

namespace poseidon::emulated {
namespace {

constexpr std::size_t kDeviceBytes = std::size_t{8} << 30;
constexpr std::size_t kAlignment = 256;
/// Of memory that nobody has written: floats and doubles of it are NaN.
constexpr int kUnwritten = 0xFF;

thread_local cudaError_t last_error = cudaSuccess;

struct Gpu {
  std::mutex mutex;
  std::map<std::uintptr_t, std::size_t> device_memory, pinned;  ///< bytes by address
  std::size_t used = 0;
  std::set<cudaStream_t> streams;
};
/// Never destroyed: memory is given back while the process ends.
Gpu& gpu() {
  static Gpu* const the = new Gpu;
  return *the;
}

bool is_within(const std::map<std::uintptr_t, std::size_t>& ranges, const void* memory,
               std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  auto range = ranges.upper_bound(begin);
  if (range == ranges.begin()) return false;
  --range;
  return begin - range->first <= range->second && bytes <= range->second - (begin - range->first);
}

bool is_pinned(const void* memory, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(gpu().mutex);
  return is_within(gpu().pinned, memory, bytes);
}

bool overlaps_device_memory(const void* memory, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(gpu().mutex);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  auto range = gpu().device_memory.lower_bound(begin + bytes);
  if (range == gpu().device_memory.begin()) return false;
  --range;
  return range->first + range->second > begin;
}

void wait_for(const Record& record) { record.done.wait(false, std::memory_order_acquire); }

/// What a copy may touch, by its kind.
bool are_on_their_sides(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return is_device_memory(to, bytes) && !overlaps_device_memory(from, bytes);
    case cudaMemcpyDeviceToHost:
      return is_device_memory(from, bytes) && !overlaps_device_memory(to, bytes);
    case cudaMemcpyDeviceToDevice:
      return is_device_memory(to, bytes) && is_device_memory(from, bytes);
    default:
      return false;  // the device's code says where its memory is
  }
}

}  // namespace

cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

bool is_device_memory(const void* memory, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(gpu().mutex);
  return is_within(gpu().device_memory, memory, bytes);
}

void spoil(void* workspace, std::size_t bytes) {
  constexpr std::size_t kEach = std::size_t{64} << 10;
  const std::size_t some = std::min(bytes, kEach);
  std::memset(workspace, kUnwritten, some);
  std::memset(static_cast<std::byte*>(workspace) + bytes - some, kUnwritten, some);
}

}  // namespace poseidon::emulated

using namespace poseidon::emulated;  // NOLINT: what follows is another's interface

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    default:
      return "an error of the emulated GPU";
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : told(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return told(cudaErrorInvalidDevice);
  std::memset(static_cast<void*>(properties), 0, sizeof(*properties));
  std::strncpy(properties->name, "emulated GPU", sizeof(properties->name) - 1);
  properties->major = 9;
  properties->totalGlobalMem = kDeviceBytes;
  return cudaSuccess;
}

// ---- memory ----

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* all_bytes) {
  const std::lock_guard<std::mutex> lock(gpu().mutex);
  *free_bytes = kDeviceBytes - gpu().used;
  *all_bytes = kDeviceBytes;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (memory == nullptr) return told(cudaErrorInvalidValue);
  const std::lock_guard<std::mutex> lock(gpu().mutex);
  if (bytes > kDeviceBytes - gpu().used) return told(cudaErrorMemoryAllocation);
  // Exactly as many bytes as were asked for, so that AddressSanitizer sees who goes beyond.
  void* made = nullptr;
  if (posix_memalign(&made, kAlignment, bytes) != 0) return told(cudaErrorMemoryAllocation);
  std::memset(made, kUnwritten, bytes);
  gpu().device_memory[reinterpret_cast<std::uintptr_t>(made)] = bytes;
  gpu().used += bytes;
  *memory = made;
  return cudaSuccess;
}

// As the real one, it waits for all that the GPU was given.
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  std::vector<std::shared_ptr<Record>> records;
  {
    const std::lock_guard<std::mutex> lock(gpu().mutex);
    const auto found = gpu().device_memory.find(reinterpret_cast<std::uintptr_t>(memory));
    if (found == gpu().device_memory.end()) return told(cudaErrorInvalidValue);
    gpu().used -= found->second;
    gpu().device_memory.erase(found);
    for (const cudaStream_t stream : gpu().streams) records.push_back(stream->record());
  }
  for (const auto& record : records) wait_for(*record);
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  const std::lock_guard<std::mutex> lock(gpu().mutex);
  if (bytes == 0) return told(cudaErrorInvalidValue);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  auto after = gpu().pinned.lower_bound(begin + bytes);
  if (after != gpu().pinned.begin()) {
    --after;
    if (after->first + after->second > begin) return told(cudaErrorHostMemoryAlreadyRegistered);
  }
  gpu().pinned[begin] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* memory) {
  const std::lock_guard<std::mutex> lock(gpu().mutex);
  return gpu().pinned.erase(reinterpret_cast<std::uintptr_t>(memory)) == 1
             ? cudaSuccess
             : told(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (stream == nullptr) return told(cudaErrorInvalidResourceHandle);
  if (!is_device_memory(memory, bytes)) return told(cudaErrorInvalidValue);
  stream->push([=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  if (stream == nullptr) return told(cudaErrorInvalidResourceHandle);
  if (width == 0 || height == 0) return cudaSuccess;
  if (to_pitch < width || from_pitch < width) return told(cudaErrorInvalidPitchValue);
  const std::size_t to_bytes = (height - 1) * to_pitch + width;
  const std::size_t from_bytes = (height - 1) * from_pitch + width;
  if (!are_on_their_sides(to, from, std::min(to_bytes, from_bytes), kind)) {
    return told(cudaErrorInvalidValue);
  }
  if (kind != cudaMemcpyHostToDevice && !is_device_memory(from, from_bytes)) {
    return told(cudaErrorInvalidValue);
  }
  if (kind != cudaMemcpyDeviceToHost && !is_device_memory(to, to_bytes)) {
    return told(cudaErrorInvalidValue);
  }
  const auto copy = [=](const void* source) {
    for (std::size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(source) + row * from_pitch, width);
    }
  };
  // From memory that is not pinned a copy is taken before the call returns; to such memory it
  // returns when all is there.
  if (kind == cudaMemcpyHostToDevice && !is_pinned(from, from_bytes)) {
    const auto* const begin = static_cast<const std::byte*>(from);
    stream->push([copy, staged = std::vector<std::byte>(begin, begin + from_bytes)] {
      copy(staged.data());
    });
    return cudaSuccess;
  }
  stream->push([copy, from] { copy(from); });
  if (kind == cudaMemcpyDeviceToHost && !is_pinned(to, to_bytes)) wait_for(*stream->record());
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

// ---- streams and events ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking)
    return told(cudaErrorInvalidValue);  // tied to the default one
  *stream = new CUstream_st;
  const std::lock_guard<std::mutex> lock(gpu().mutex);
  gpu().streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard<std::mutex> lock(gpu().mutex);
    if (gpu().streams.erase(stream) == 0) return told(cudaErrorInvalidResourceHandle);
  }
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream == nullptr) return told(cudaErrorInvalidResourceHandle);
  return stream->is_idle() ? cudaSuccess : told(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (stream == nullptr || event == nullptr) return told(cudaErrorInvalidResourceHandle);
  std::shared_ptr<Record> record;
  {
    const std::lock_guard<std::mutex> lock(event->mutex);
    record = event->last;
  }
  if (record != nullptr) stream->push([record] { wait_for(*record); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->times = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (stream == nullptr || event == nullptr) return told(cudaErrorInvalidResourceHandle);
  const std::lock_guard<std::mutex> lock(event->mutex);
  event->last = stream->record();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
  const std::lock_guard<std::mutex> lock(event->mutex);
  if (event->last == nullptr || event->last->done.load(std::memory_order_acquire)) {
    return cudaSuccess;
  }
  return told(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (begin == nullptr || end == nullptr || !begin->times || !end->times) {
    return told(cudaErrorInvalidResourceHandle);
  }
  std::shared_ptr<Record> records[2];
  for (int i = 0; i < 2; ++i) {  // they may be one
    const cudaEvent_t event = i == 0 ? begin : end;
    const std::lock_guard<std::mutex> lock(event->mutex);
    records[i] = event->last;
    if (records[i] == nullptr) return told(cudaErrorInvalidResourceHandle);
    if (!records[i]->done.load(std::memory_order_acquire)) return told(cudaErrorNotReady);
  }
  *milliseconds = static_cast<float>(records[1]->time_ns - records[0]->time_ns) * 1e-6F;
  return cudaSuccess;
}

}  // extern "C"
