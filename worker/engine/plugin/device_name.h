#pragma once

// Parses the name of a device on a command line (--device). Pure.
//
// Called by: poseidon-worker and `poseidon local`; open_engine.h opens the device. Calls: nothing.

#include <string>

#include "absl/status/statusor.h"

namespace poseidon {

struct DeviceName {
  enum class Kind { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  int ordinal = 0;  ///< of kCuda, >= 0
};

/// "auto", "cpu" or "cuda:N"; INVALID_ARGUMENT for anything else.
absl::StatusOr<DeviceName> parse_device_name(const std::string& name);

}  // namespace poseidon
