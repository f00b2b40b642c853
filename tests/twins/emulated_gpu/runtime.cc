// CUDA's runtime as far as the device uses it: two GPUs of 8 GiB, whose memory is the host's. It
// refuses what the real one refuses or reports as an error: memory of the wrong side or of another
// GPU, ranges that end beyond an allocation or are pinned in part, the default stream.

#include <cuda_runtime_api.h>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/threads/mutex.h"
#include "tests/twins/emulated_gpu/stream.h"

namespace poseidon::emulated {
namespace {

constexpr std::size_t kDeviceBytes = std::size_t{8} << 30;
constexpr std::size_t kAlignment = 256;
/// The content of unwritten memory: its floats and doubles are NaN.
constexpr int kUnwritten = 0xFF;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int chosen_device = -1;
std::atomic<unsigned long> stray_calls{0}, pageable_copies{0}, timing_calls{0};

/// Bytes by address; no two overlap.
using Ranges = std::map<std::uintptr_t, std::size_t>;

struct Gpu {
  Ranges memory;
  std::size_t used = 0;
  std::set<cudaStream_t> streams;
};
struct Machine {
  Mutex mutex;
  std::array<Gpu, kDevices> gpus ABSL_GUARDED_BY(mutex);
  Ranges pinned ABSL_GUARDED_BY(mutex);
  std::map<std::string, unsigned long> setup_calls ABSL_GUARDED_BY(mutex);
};
/// Never destroyed: memory is given back while the process ends.
Machine& machine() {
  static Machine* const the = new Machine;
  return *the;
}
Gpu& current_gpu() ABSL_EXCLUSIVE_LOCKS_REQUIRED(machine().mutex) {
  return machine().gpus[static_cast<std::size_t>(current_device())];
}

bool is_device(int device) { return device >= 0 && device < kDevices; }

bool is_within(const Ranges& ranges, const void* memory, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  auto range = ranges.upper_bound(begin);
  if (range == ranges.begin()) return false;
  --range;
  return begin - range->first <= range->second && bytes <= range->second - (begin - range->first);
}

bool overlaps(const Ranges& ranges, const void* memory, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  auto range = ranges.lower_bound(begin + bytes);
  if (range == ranges.begin()) return false;
  --range;
  return range->first + range->second > begin;
}

bool is_pinned(const void* memory, std::size_t bytes) {
  const poseidon::MutexLock lock(machine().mutex);
  return is_within(machine().pinned, memory, bytes);
}

/// Not in any GPU's memory, and pinned as a whole or not at all.
bool is_host_memory(const void* memory, std::size_t bytes) {
  const poseidon::MutexLock lock(machine().mutex);
  for (const Gpu& gpu : machine().gpus) {
    if (overlaps(gpu.memory, memory, bytes)) return false;
  }
  return is_within(machine().pinned, memory, bytes) || !overlaps(machine().pinned, memory, bytes);
}

void wait_for(const Record& record) { record.wait(); }

/// What a copy may touch, by its kind.
bool are_on_their_sides(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return is_device_memory(to, bytes) && is_host_memory(from, bytes);
    case cudaMemcpyDeviceToHost:
      return is_device_memory(from, bytes) && is_host_memory(to, bytes);
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

int current_device() {
  if (chosen_device >= 0) return chosen_device;
  ++stray_calls;
  return 0;
}

bool is_usable(cudaStream_t stream) {
  return stream != nullptr && stream->device() == current_device();
}

void count_setup(const char* call) {
  const poseidon::MutexLock lock(machine().mutex);
  ++machine().setup_calls[call];
}

bool is_device_memory(const void* memory, std::size_t bytes) {
  const poseidon::MutexLock lock(machine().mutex);
  const Gpu& gpu = current_gpu();
  return is_within(gpu.memory, memory, bytes);
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

/// For tests: every call so far that belongs to setting up, and how often: "cudaMalloc 7, ...".
/// Until the thread's next question.
const char* poseidon_emulated_setup_calls() {
  thread_local std::string text;
  text.clear();
  const poseidon::MutexLock lock(machine().mutex);
  for (const auto& [call, count] : machine().setup_calls) {
    text += (text.empty() ? "" : ", ") + call + " " + std::to_string(count);
  }
  return text.c_str();
}
/// For tests: calls of threads that had chosen no GPU.
unsigned long poseidon_emulated_stray_calls() { return stray_calls; }
/// For tests: copies from or to host memory that is not pinned, which the host stands still for.
unsigned long poseidon_emulated_pageable_copies() { return pageable_copies; }
/// For tests: records of events that have a time, and questions for one.
unsigned long poseidon_emulated_timing_calls() { return timing_calls; }

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
  *count = kDevices;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return told(cudaErrorInvalidDevice);
  chosen_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return told(cudaErrorInvalidDevice);
  std::memset(static_cast<void*>(properties), 0, sizeof(*properties));
  std::strncpy(properties->name, "emulated GPU", sizeof(properties->name) - 1);
  properties->major = 9;
  properties->totalGlobalMem = kDeviceBytes;
  return cudaSuccess;
}

// The first one is where the emulated driver has its GPU (tests/twins/fake_nvml.cc). In capital
// letters, as the real one.
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  if (!is_device(device)) return told(cudaErrorInvalidDevice);
  std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02X:00.0", 0x3b + device);
  return cudaSuccess;
}

// ---- memory ----

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* all_bytes) {
  const poseidon::MutexLock lock(machine().mutex);
  const Gpu& gpu = current_gpu();
  *free_bytes = kDeviceBytes - gpu.used;
  *all_bytes = kDeviceBytes;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  count_setup("cudaMalloc");
  if (memory == nullptr) return told(cudaErrorInvalidValue);
  const poseidon::MutexLock lock(machine().mutex);
  Gpu& gpu = current_gpu();
  if (bytes > kDeviceBytes - gpu.used) return told(cudaErrorMemoryAllocation);
  // Exactly as many bytes as requested, so that AddressSanitizer sees accesses beyond them.
  void* made = nullptr;
  if (posix_memalign(&made, kAlignment, bytes) != 0) return told(cudaErrorMemoryAllocation);
  std::memset(made, kUnwritten, bytes);
  gpu.memory[reinterpret_cast<std::uintptr_t>(made)] = bytes;
  gpu.used += bytes;
  *memory = made;
  return cudaSuccess;
}

// As the real one, it waits for all that the memory's GPU was given, whichever the thread's is.
cudaError_t cudaFree(void* memory) {
  count_setup("cudaFree");
  static_cast<void>(current_device());
  if (memory == nullptr) return cudaSuccess;
  std::vector<std::shared_ptr<Record>> records;
  {
    const poseidon::MutexLock lock(machine().mutex);
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    auto& gpus = machine().gpus;
    const auto gpu =
        std::find_if(gpus.begin(), gpus.end(), [&](Gpu& g) { return g.memory.contains(begin); });
    if (gpu == gpus.end()) return told(cudaErrorInvalidValue);
    gpu->used -= gpu->memory[begin];
    gpu->memory.erase(begin);
    for (const cudaStream_t stream : gpu->streams) records.push_back(stream->record());
  }
  for (const auto& record : records) wait_for(*record);
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  count_setup("cudaHostRegister");
  static_cast<void>(current_device());
  const poseidon::MutexLock lock(machine().mutex);
  if (bytes == 0) return told(cudaErrorInvalidValue);
  if (overlaps(machine().pinned, memory, bytes)) return told(cudaErrorHostMemoryAlreadyRegistered);
  machine().pinned[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* memory) {
  count_setup("cudaHostUnregister");
  static_cast<void>(current_device());
  const poseidon::MutexLock lock(machine().mutex);
  return machine().pinned.erase(reinterpret_cast<std::uintptr_t>(memory)) == 1
             ? cudaSuccess
             : told(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (!is_usable(stream)) return told(cudaErrorInvalidResourceHandle);
  if (!is_device_memory(memory, bytes)) return told(cudaErrorInvalidValue);
  stream->push([=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  if (!is_usable(stream)) return told(cudaErrorInvalidResourceHandle);
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
  const bool is_pageable = (kind == cudaMemcpyHostToDevice && !is_pinned(from, from_bytes)) ||
                           (kind == cudaMemcpyDeviceToHost && !is_pinned(to, to_bytes));
  if (is_pageable) ++pageable_copies;
  if (is_pageable && kind == cudaMemcpyHostToDevice) {
    const auto* const begin = static_cast<const std::byte*>(from);
    stream->push([copy, staged = std::vector<std::byte>(begin, begin + from_bytes)] {
      copy(staged.data());
    });
    return cudaSuccess;
  }
  stream->push([copy, from] { copy(from); });
  if (is_pageable) wait_for(*stream->record());
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

// ---- streams and events ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  count_setup("cudaStreamCreate");
  if (flags != cudaStreamNonBlocking)
    return told(cudaErrorInvalidValue);  // tied to the default one
  *stream = new CUstream_st(current_device());
  const poseidon::MutexLock lock(machine().mutex);
  current_gpu().streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  count_setup("cudaStreamDestroy");
  static_cast<void>(current_device());
  if (!is_usable(stream)) return told(cudaErrorInvalidResourceHandle);
  {
    const poseidon::MutexLock lock(machine().mutex);
    auto& gpus = machine().gpus;
    if (std::none_of(gpus.begin(), gpus.end(), [&](Gpu& g) { return g.streams.erase(stream); })) {
      return told(cudaErrorInvalidResourceHandle);
    }
  }
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (!is_usable(stream)) return told(cudaErrorInvalidResourceHandle);
  return stream->is_idle() ? cudaSuccess : told(cudaErrorNotReady);
}

// The event may be of another GPU.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!is_usable(stream) || event == nullptr) return told(cudaErrorInvalidResourceHandle);
  std::shared_ptr<Record> record;
  {
    const poseidon::MutexLock lock(event->mutex);
    record = event->last;
  }
  if (record != nullptr) stream->push([record] { wait_for(*record); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  count_setup("cudaEventCreate");
  *event = new CUevent_st;
  (*event)->device = current_device();
  (*event)->times = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  count_setup("cudaEventDestroy");
  static_cast<void>(current_device());
  if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!is_usable(stream) || event == nullptr || event->device != stream->device()) {
    return told(cudaErrorInvalidResourceHandle);
  }
  if (event->times) ++timing_calls;
  const poseidon::MutexLock lock(event->mutex);
  event->last = stream->record();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  static_cast<void>(current_device());
  if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
  {
    const poseidon::MutexLock lock(event->mutex);
    if (event->last == nullptr || event->last->is_done()) {
      return cudaSuccess;
    }
  }
  std::this_thread::yield();  // a caller that polls shares its core with this GPU
  return told(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  ++timing_calls;
  if (begin == nullptr || end == nullptr || !begin->times || !end->times) {
    return told(cudaErrorInvalidResourceHandle);
  }
  std::shared_ptr<Record> records[2];
  for (int i = 0; i < 2; ++i) {  // they may be one
    const cudaEvent_t event = i == 0 ? begin : end;
    const poseidon::MutexLock lock(event->mutex);
    records[i] = event->last;
    if (records[i] == nullptr) return told(cudaErrorInvalidResourceHandle);
    if (!records[i]->is_done()) return told(cudaErrorNotReady);
  }
  *milliseconds = static_cast<float>(records[1]->time_ns - records[0]->time_ns) * 1e-6F;
  return cudaSuccess;
}

}  // extern "C"
