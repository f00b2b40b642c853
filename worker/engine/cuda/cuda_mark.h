#pragma once

// A point in time on a GPU stream, and the time between two of them.
//
// Called by: PassTimes (worker/engine/executor/pass_times.h), which creates marks with the
// executor; cuda_device.cc, which makes and returns them. Calls: CUDA events.

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "worker/engine/device.h"

namespace poseidon {

/// One thread, which has chosen the mark's GPU.
class CudaMark final : public DeviceMark {
 public:
  static absl::StatusOr<std::unique_ptr<CudaMark>> create();
  CudaMark() = default;
  ~CudaMark() override;
  CudaMark(const CudaMark&) = delete;
  CudaMark& operator=(const CudaMark&) = delete;

  /// Marks the moment when the stream has done all work queued until now.
  absl::Status record(cudaStream_t stream);
  /// Negative when `earlier` was later. Both are past.
  absl::StatusOr<Nanoseconds> time_since(const CudaMark& earlier) const;

 private:
  cudaEvent_t event_ = nullptr;
};

/// Of CudaDevice::make_mark; null: not needed.
inline absl::Status record_mark(DeviceMark* mark, cudaStream_t stream) {
  return mark == nullptr ? absl::OkStatus() : static_cast<CudaMark*>(mark)->record(stream);
}

}  // namespace poseidon
