#pragma once

// The engines that poseidon-worker offers, by the name of the device (--device).

#include <string>

#include "absl/status/statusor.h"
#include "worker/engine/engine.h"

namespace poseidon {

/// "auto", "cpu" or "cuda:N" (device_plugin.h). "auto" is cuda:0 where the plug-in loads and finds
/// a device, else cpu, and the log says why. INVALID_ARGUMENT for any other name and for a device
/// that this machine or this version does not have.
absl::StatusOr<Engine> open_engine(const std::string& device);

}  // namespace poseidon
