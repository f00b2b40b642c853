#pragma once

// The engines that poseidon-worker offers, by the name of the device (--device).

#include <string>

#include "absl/status/statusor.h"
#include "worker/engine/engine.h"

namespace poseidon {

/// "auto", "cpu" or "cuda:N". INVALID_ARGUMENT for any other name and for a device that this
/// machine or this version does not have.
absl::StatusOr<Engine> open_engine(const std::string& device);

}  // namespace poseidon
