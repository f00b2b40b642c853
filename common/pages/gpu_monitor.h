#pragma once

// Reads a worker's GPU figures for its metrics. A seam with two implementations: NVIDIA's
// management library (NVML, which comes with the driver and is loaded at run time, so that no
// program needs it) and an in-memory twin for tests.
//
// Called by: common/pages/node_metrics.h. Calls: NVML.

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/threads/mutex.h"

namespace poseidon {

/// Figures of one moment. Empty where the GPU does not report one.
struct GpuFigures {
  std::optional<double> memory_used_bytes;
  std::optional<double> memory_total_bytes;
  std::optional<double> utilization;  ///< share of the last moment in which a kernel ran, 0 to 1
  std::optional<double> power_watts;
  std::optional<double> temperature_celsius;
};

/// Any thread.
class GpuMonitor {
 public:
  virtual ~GpuMonitor() = default;
  /// Takes milliseconds at most. All figures are empty when the GPU does not answer.
  virtual GpuFigures read() const = 0;
};

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

/// The GPU at this place of PCI ("0000:3b:00.0"): CUDA and the driver number GPUs differently
/// (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER). NOT_FOUND without that library or that GPU; the
/// message has the library's own words.
absl::StatusOr<std::unique_ptr<GpuMonitor>> open_nvml_monitor(
    const std::string& bus_id, const std::string& library = kNvmlLibrary);

/// The twin: returns the figures it was given.
class MemoryGpuMonitor final : public GpuMonitor {
 public:
  void set(const GpuFigures& figures) {
    const MutexLock lock(mutex_);
    figures_ = figures;
  }
  GpuFigures read() const override {
    const MutexLock lock(mutex_);
    return figures_;
  }

 private:
  mutable Mutex mutex_;
  GpuFigures figures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace poseidon
