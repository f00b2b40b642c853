#pragma once

// Loads devices as plug-ins, so that one program runs with and without their libraries:
// libposeidon_<kind>.so is loaded on first use, once per process, and stays loaded.
//
// Called by: open_engine.h. Calls: device_plugin_entry.h, which a plug-in implements.
//
// It searches beside the program, then in ../lib/poseidon from there (packages), then on the system
// loader's path.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/engine/device.h"

namespace poseidon {

struct DeviceOptions {
  int ordinal = 0;
  std::string precision = "fp32";  ///< "fp32" (true float32), "tf32", "bf16", "fp16"
};

/// Errors of all five: NOT_FOUND when there is no such plug-in, FAILED_PRECONDITION when there is
/// one that cannot be loaded (its libraries are missing, say) or is of another build; else the
/// plug-in's own, UNIMPLEMENTED among them for a device that it is too new for and a precision that
/// it does not have. The messages of the first two name every place searched and the loader's error
/// there. Any thread.
absl::StatusOr<std::unique_ptr<Device>> make_plugin_device(const std::string& kind,
                                                           const DeviceOptions& options);
absl::StatusOr<int> plugin_device_count(const std::string& kind);
/// For people: "NVIDIA H100 80GB HBM3".
absl::StatusOr<std::string> plugin_device_name(const std::string& kind, int ordinal);
/// Its PCI address, "0000:3b:00.0", because other programs may number devices differently.
absl::StatusOr<std::string> plugin_device_bus_id(const std::string& kind, int ordinal);
/// As Engine::health.
absl::Status plugin_device_health(const std::string& kind, int ordinal);

}  // namespace poseidon
