#pragma once

// How a worker's GPU is doing, for its metrics: a seam with two implementations, NVIDIA's
// management library (NVML, which comes with the driver; loaded when asked for, so that nothing
// needs it) and an in-memory twin for tests.

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace poseidon {

/// Of one moment. What the GPU does not tell is empty.
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
  /// Milliseconds at most. Everything empty when the GPU does not answer (any more).
  virtual GpuFigures read() const = 0;
};

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

/// GPU number `index` as the driver counts them (nvidia-smi). NOT_FOUND without that library or
/// that GPU; the message has the library's own words.
absl::StatusOr<std::unique_ptr<GpuMonitor>> open_nvml_monitor(
    unsigned index, const std::string& library = kNvmlLibrary);

/// N of "cuda:N" or "cuda:N (name)", as a worker's device is called; nullopt for other devices.
std::optional<unsigned> cuda_index(const std::string& device);

/// The twin: tells what it was told.
class MemoryGpuMonitor final : public GpuMonitor {
 public:
  void set(const GpuFigures& figures) {
    const std::lock_guard lock(mutex_);
    figures_ = figures;
  }
  GpuFigures read() const override {
    const std::lock_guard lock(mutex_);
    return figures_;
  }

 private:
  mutable std::mutex mutex_;
  GpuFigures figures_;  ///< guarded by mutex_
};

}  // namespace poseidon
