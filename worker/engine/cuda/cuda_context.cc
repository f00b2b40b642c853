#include "worker/engine/cuda/cuda_context.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/engine/cuda/cuda_status.h"

namespace poseidon {
namespace {

constexpr std::chrono::seconds kDeviceTimeout{120};
/// What is asked for every turn at first, then after a pause: most waits are for microseconds, and
/// a core that spins for long is missing for sums and sending. Linux adds its timer slack to a
/// pause, 50 us by default, in which the GPU would be idle.
constexpr std::chrono::microseconds kSpinTime{200};
constexpr std::chrono::microseconds kPause{20};
constexpr unsigned long kSlackNanoseconds = 1000;
/// Where channels are first, algorithms on tensor cores copy both tensors of a layer to their own
/// layout: at a batch of 128 VGG's first layers need more than 3 GiB.
constexpr std::size_t kLeastWorkspaceLimit = std::size_t{1} << 30;
constexpr std::size_t kWorkspaceShare = 8;  // one in so many

/// What CudaContext::patience tells. Of the process, like the GPU's state that it stands for.
std::atomic<bool> patience_has_ended{false};

absl::Status out_of_patience() {
  return absl::DeadlineExceededError(
      absl::StrCat("the GPU did not finish its work within ", kDeviceTimeout.count(),
                   " s: look for its errors in the kernel's log (NVRM: Xid)"));
}

/// Of kPause, or longer where Linux does not let us say so.
void pause() {
  static thread_local bool has_said = false;
  if (!std::exchange(has_said, true)) {
    static_cast<void>(prctl(PR_SET_TIMERSLACK, kSlackNanoseconds, 0, 0, 0));
  }
  std::this_thread::sleep_for(kPause);
}

// It waits for the GPU, without limit when that has stopped.
void free_device_memory(void* memory) {
  if (patience_has_ended) return;
  cuda_status(cudaFree(memory), "cudaFree").IgnoreError();
}

absl::Status make_stream(cudaStream_t* stream) {
  POSEIDON_CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaContext>> CudaContext::create(int ordinal,
                                                                 CudaPrecision precision,
                                                                 Warn warn_with) {
  std::unique_ptr<CudaContext> context(new CudaContext(ordinal, precision, warn_with));
  POSEIDON_RETURN_IF_ERROR(context->open());
  return context;
}

absl::Status CudaContext::open() {
  POSEIDON_CUDA(cudaSetDevice(ordinal_));
  std::size_t free_bytes = 0, all_bytes = 0;
  POSEIDON_CUDA(cudaMemGetInfo(&free_bytes, &all_bytes));
  workspace_limit_ = std::max(kLeastWorkspaceLimit, all_bytes / kWorkspaceShare);
  cudaDeviceProp properties{};
  POSEIDON_CUDA(cudaGetDeviceProperties(&properties, ordinal_));
  is_ampere_ = properties.major >= 8;
  POSEIDON_RETURN_IF_ERROR(make_stream(&compute_));
  POSEIDON_RETURN_IF_ERROR(make_stream(&upload_));
  POSEIDON_RETURN_IF_ERROR(make_stream(&download_));
  POSEIDON_RETURN_IF_ERROR(make_stream(&factors_));
  POSEIDON_CUDA(cudaEventCreateWithFlags(&order_event_, cudaEventDisableTiming));
  POSEIDON_CUDA(cudaEventCreateWithFlags(&wait_event_, cudaEventDisableTiming));
  POSEIDON_CUDA(cudnnCreate(&cudnn_));
  // Its builds for different CUDAs have one soname.
  if (const auto built_for = cudnnGetCudartVersion() / 1000; built_for != CUDART_VERSION / 1000) {
    warn(absl::StrCat("cuDNN ", cudnnGetVersion(), " was built for CUDA ", built_for,
                      ", and this program for CUDA ", CUDART_VERSION / 1000,
                      ": install cuDNN's build for that one"));
  }
  POSEIDON_CUDA(cudnnSetStream(cudnn_, compute_));
  convolutions_ = std::make_unique<ConvolutionPlanner>(cudnn_, workspace_limit_);
  POSEIDON_CUDA(cublasLtCreate(&cublas_));
  return absl::OkStatus();
}

// Errors cannot be reported here. This would wait for a GPU that has stopped; its process ends soon
// (Engine::health) and frees the rest.
CudaContext::~CudaContext() {
  if (patience_has_ended) return;
  use();
  workspace_.memory.reset();
  twins_.memory.reset();
  if (cublas_ != nullptr) static_cast<void>(cublasLtDestroy(cublas_));
  if (cudnn_ != nullptr) static_cast<void>(cudnnDestroy(cudnn_));
  for (cudaEvent_t event : {order_event_, wait_event_}) {
    if (event != nullptr) cuda_status(cudaEventDestroy(event), "cudaEventDestroy").IgnoreError();
  }
  for (cudaStream_t stream : {compute_, upload_, download_, factors_}) {
    if (stream == nullptr) continue;
    cuda_status(cudaStreamDestroy(stream), "cudaStreamDestroy").IgnoreError();
  }
}

absl::StatusOr<DeviceMemory> CudaContext::allocate(std::int64_t bytes) const {
  use();
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  void* memory = nullptr;
  if (const cudaError_t error = cudaMalloc(&memory, size); error != cudaSuccess) {
    const absl::Status failure = cuda_status(error, "cudaMalloc");
    if (error != cudaErrorMemoryAllocation) return failure;
    std::size_t free_bytes = 0, all_bytes = 0;
    cuda_status(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo").IgnoreError();
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot allocate ", bytes, " bytes of GPU memory: ", free_bytes >> 20, " of ",
        all_bytes >> 20, " MiB are free; use a smaller batch or network, or micro_batches"));
  }
  DeviceMemory owned(memory, free_device_memory);
  POSEIDON_CUDA(cudaMemsetAsync(memory, 0, size, compute_));
  POSEIDON_RETURN_IF_ERROR(wait(compute_));
  return owned;
}

// What was promised once stays promised: a larger one that cannot be had leaves none, not less.
absl::Status CudaContext::reserve(Shared& shared, std::size_t bytes) {
  shared.promised = std::max(shared.promised, bytes);
  if (shared.promised <= shared.bytes) return absl::OkStatus();
  // Layers may have been tried out on it; and cudaFree() would wait without a deadline.
  POSEIDON_RETURN_IF_ERROR(wait(compute_));
  shared.memory.reset();
  shared.bytes = 0;
  POSEIDON_ASSIGN_OR_RETURN(shared.memory, allocate(static_cast<std::int64_t>(shared.promised)));
  shared.bytes = shared.promised;
  return absl::OkStatus();
}

// A stream that waits for an event waits for its last record before the call: it may be recorded
// again at once.
absl::Status CudaContext::order(cudaStream_t earlier, cudaStream_t later) const {
  POSEIDON_CUDA(cudaEventRecord(order_event_, earlier));
  POSEIDON_CUDA(cudaStreamWaitEvent(later, order_event_, cudaEventWaitDefault));
  return absl::OkStatus();
}

// A GPU takes some microseconds to reach an event; most streams have nothing to do when asked.
absl::Status CudaContext::wait(cudaStream_t stream) const {
  POSEIDON_ASSIGN_OR_RETURN(const bool is_idle, is_ready(cudaStreamQuery(stream)));
  if (is_idle) return absl::OkStatus();
  POSEIDON_CUDA(cudaEventRecord(wait_event_, stream));
  return wait(wait_event_);
}

absl::StatusOr<bool> CudaContext::is_done(cudaEvent_t event) {
  return is_ready(cudaEventQuery(event));
}

absl::StatusOr<bool> CudaContext::is_ready(cudaError_t state) {
  if (state == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  POSEIDON_RETURN_IF_ERROR(cuda_status(state, "waiting for the GPU"));
  return true;
}

bool CudaContext::is_well() const {
  static_cast<void>(cudaGetLastError());  // an error of another call, which caused this check
  const cudaError_t state = cudaStreamQuery(compute_);
  static_cast<void>(cudaGetLastError());
  return state == cudaSuccess || state == cudaErrorNotReady;
}

absl::Status CudaContext::patience() {
  return patience_has_ended ? out_of_patience() : absl::OkStatus();
}

absl::Status CudaContext::wait(cudaEvent_t event) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    // The time first: a process that stood still between the two has asked after it.
    const auto waited = std::chrono::steady_clock::now() - begin;
    POSEIDON_ASSIGN_OR_RETURN(const bool done, is_done(event));
    if (done) return absl::OkStatus();
    if (patience_has_ended || waited > kDeviceTimeout) {
      patience_has_ended = true;
      return out_of_patience();
    }
    if (waited > kSpinTime) pause();
  }
}

}  // namespace poseidon
