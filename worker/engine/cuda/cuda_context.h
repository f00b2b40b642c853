#pragma once

// The state of one GPU that all operators of a device share: streams, library handles, workspace.
//
// Streams. All computation is queued on `compute`, in the order of the layer walk; only that order
// protects the shared workspace and the planned memory. `upload` carries parameters and images to
// the GPU, `download` gradients to the host, and `factors` runs steps from factors. Events order
// them against `compute` where one needs the other's result (cuda_device.cc). Nothing uses the
// default stream or waits for the whole device.
//
// Called by: worker/engine/cuda/cuda_device.cc and all its operators. Calls: CUDA.

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/cuda/convolution_plans.h"
#include "worker/engine/device.h"

namespace poseidon {

/// What products and convolutions round their factors to; sums are float32 always. kFloat16:
/// convolutions to float16, scaled (half_scale.h); products to TF32, whose significands are as
/// long.
enum class CudaPrecision { kFloat32, kTf32, kBfloat16, kFloat16 };

/// Created by the device, one thread at a time.
class CudaContext {
 public:
  using Warn = void (*)(const std::string& message);
  static absl::StatusOr<std::unique_ptr<CudaContext>> create(int ordinal, CudaPrecision precision,
                                                             Warn warn_with);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  /// Makes the GPU current on the calling thread, which may differ from the creating one. On a
  /// thread without a current GPU every call would use the first GPU.
  void use() const { use(ordinal_); }
  static void use(int ordinal) { static_cast<void>(cudaSetDevice(ordinal)); }

  int ordinal() const { return ordinal_; }
  CudaPrecision precision() const { return precision_; }
  /// Or later: whether the GPU computes with bfloat16 and TF32.
  bool is_ampere() const { return is_ampere_; }
  void warn(const std::string& message) const { warn_(message); }
  cudaStream_t compute() const { return compute_; }
  cudaStream_t upload() const { return upload_; }
  cudaStream_t download() const { return download_; }
  cudaStream_t factors() const { return factors_; }
  cudnnHandle_t cudnn() const { return cudnn_; }  ///< on `compute`
  cublasLtHandle_t cublas() const { return cublas_; }
  ConvolutionPlanner& convolutions() { return *convolutions_; }

  /// Zeroed device memory, aligned to 256 bytes; RESOURCE_EXHAUSTED with what there is.
  absl::StatusOr<DeviceMemory> allocate(std::int64_t bytes) const;

  /// Memory that operators on `compute` share: only one runs at a time, and nothing in it outlives
  /// a forward or a backward. Grows while operators are made; ask for the address when running.
  absl::Status reserve_workspace(std::size_t bytes) { return reserve(workspace_, bytes); }
  std::byte* workspace() const { return static_cast<std::byte*>(workspace_.memory.get()); }
  /// The same for plain twins of tensors (cuda_twin.h), beside the workspace.
  absl::Status reserve_twins(std::size_t bytes) { return reserve(twins_, bytes); }
  std::byte* twins() const { return static_cast<std::byte*>(twins_.memory.get()); }
  /// Most workspace of one algorithm: a share of this GPU's total memory, not of the free memory,
  /// so that equal GPUs choose equal algorithms.
  std::size_t workspace_limit() const { return workspace_limit_; }

  /// Makes `later` wait for the work that is queued on `earlier` now. Any number of times.
  absl::Status order(cudaStream_t earlier, cudaStream_t later) const;
  /// Waits on the host until all that is queued on the stream now is done, for kDeviceTimeout; not
  /// at all once patience() has ended.
  absl::Status wait(cudaStream_t stream) const;
  /// Likewise for an event.
  static absl::Status wait(cudaEvent_t event);
  /// Whether all that came before the event's last record is done.
  static absl::StatusOr<bool> is_done(cudaEvent_t event);
  /// Whether the GPU still works after a library call failed: no work queued on `compute` has
  /// failed. Clears the thread's last CUDA error.
  bool is_well() const;
  /// DEADLINE_EXCEEDED once a GPU of this process did not finish in time: its work is still queued
  /// and may write to memory that is reused. Any thread.
  static absl::Status patience();

 private:
  CudaContext(int ordinal, CudaPrecision precision, Warn warn_with)
      : ordinal_(ordinal), precision_(precision), warn_(warn_with) {}
  absl::Status open();
  /// Converts the result of an event or stream query. All queries use it, because the runtime keeps
  /// "not ready" as the thread's last error, which the next launch would report.
  static absl::StatusOr<bool> is_ready(cudaError_t state);
  struct Shared {
    DeviceMemory memory{nullptr, nullptr};
    std::size_t bytes = 0, promised = 0;
  };
  absl::Status reserve(Shared& shared, std::size_t bytes);

  const int ordinal_;
  const CudaPrecision precision_;
  const Warn warn_;
  cudaStream_t compute_ = nullptr, upload_ = nullptr, download_ = nullptr, factors_ = nullptr;
  cudaEvent_t order_event_ = nullptr, wait_event_ = nullptr;
  cudnnHandle_t cudnn_ = nullptr;
  cublasLtHandle_t cublas_ = nullptr;
  std::unique_ptr<ConvolutionPlanner> convolutions_;  ///< with cudnn_
  Shared workspace_, twins_;
  std::size_t workspace_limit_ = 0;
  bool is_ampere_ = false;
};

}  // namespace poseidon
