#pragma once

// What a device is called on a command line (--device). Pure.
//
// Before: poseidon-worker and `poseidon local`. After: open_engine.h opens it.

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
