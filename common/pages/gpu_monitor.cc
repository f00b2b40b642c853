#include "common/pages/gpu_monitor.h"

#include <dlfcn.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

// What we use of NVML's stable C interface (nvml.h).
using NvmlDevice = void*;
constexpr int kNvmlSuccess = 0;
constexpr int kNvmlTemperatureOfGpu = 0;  // NVML_TEMPERATURE_GPU
struct NvmlMemory {
  unsigned long long total, free, used;  // bytes
};
struct NvmlUtilization {
  unsigned gpu, memory;  // percent
};

struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_text)(int) = nullptr;
  int (*device)(const char* bus_id, NvmlDevice*) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
  int (*power_mw)(NvmlDevice, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice, int sensor, unsigned*) = nullptr;
};

struct CloseLibrary {
  void operator()(void* library) const { ::dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

template <typename Function>
absl::Status find(void* library, const std::string& name, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, symbol));
  if (function != nullptr) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(name, " has no function ", symbol));
}

absl::StatusOr<Nvml> find_all(void* library, const std::string& name) {
  Nvml nvml;
  POSEIDON_RETURN_IF_ERROR(find(library, name, "nvmlInit_v2", nvml.init));
  POSEIDON_RETURN_IF_ERROR(find(library, name, "nvmlShutdown", nvml.shutdown));
  POSEIDON_RETURN_IF_ERROR(find(library, name, "nvmlErrorString", nvml.error_text));
  POSEIDON_RETURN_IF_ERROR(find(library, name, "nvmlDeviceGetHandleByPciBusId_v2", nvml.device));
  POSEIDON_RETURN_IF_ERROR(find(library, name, "nvmlDeviceGetMemoryInfo", nvml.memory));
  POSEIDON_RETURN_IF_ERROR(find(library, name, "nvmlDeviceGetUtilizationRates", nvml.utilization));
  POSEIDON_RETURN_IF_ERROR(find(library, name, "nvmlDeviceGetPowerUsage", nvml.power_mw));
  POSEIDON_RETURN_IF_ERROR(find(library, name, "nvmlDeviceGetTemperature", nvml.temperature));
  return nvml;
}

class NvmlMonitor final : public GpuMonitor {
 public:
  /// After a successful init.
  NvmlMonitor(Library library, const Nvml& nvml, NvmlDevice device)
      : library_(std::move(library)), nvml_(nvml), device_(device) {}
  ~NvmlMonitor() override { nvml_.shutdown(); }
  NvmlMonitor(const NvmlMonitor&) = delete;
  NvmlMonitor& operator=(const NvmlMonitor&) = delete;

  GpuFigures read() const override {
    GpuFigures figures;
    NvmlMemory memory{};
    if (nvml_.memory(device_, &memory) == kNvmlSuccess) {
      figures.memory_used_bytes = static_cast<double>(memory.used);
      figures.memory_total_bytes = static_cast<double>(memory.total);
    }
    NvmlUtilization utilization{};
    if (nvml_.utilization(device_, &utilization) == kNvmlSuccess) {
      figures.utilization = utilization.gpu / 100.0;
    }
    unsigned value = 0;
    if (nvml_.power_mw(device_, &value) == kNvmlSuccess) figures.power_watts = value / 1000.0;
    if (nvml_.temperature(device_, kNvmlTemperatureOfGpu, &value) == kNvmlSuccess) {
      figures.temperature_celsius = value;
    }
    return figures;
  }

 private:
  const Library library_;  ///< first: unloaded after shutdown
  const Nvml nvml_;        ///< thread-safe, as NVIDIA says
  const NvmlDevice device_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GpuMonitor>> open_nvml_monitor(const std::string& bus_id,
                                                              const std::string& library) {
  Library handle(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (handle == nullptr) {
    const char* const reason = ::dlerror();
    return absl::NotFoundError(reason == nullptr ? absl::StrCat(library, " cannot be loaded")
                                                 : reason);
  }
  POSEIDON_ASSIGN_OR_RETURN(const Nvml nvml, find_all(handle.get(), library));
  if (const int code = nvml.init(); code != kNvmlSuccess) {
    return absl::NotFoundError(absl::StrCat(library, ": ", nvml.error_text(code)));
  }
  NvmlDevice device = nullptr;
  if (const int code = nvml.device(bus_id.c_str(), &device); code != kNvmlSuccess) {
    absl::Status status = absl::NotFoundError(
        absl::StrCat(library, ", GPU at ", bus_id, ": ", nvml.error_text(code)));
    nvml.shutdown();
    return status;
  }
  return std::make_unique<NvmlMonitor>(std::move(handle), nvml, device);
}

}  // namespace poseidon
