#pragma once

// Whether this machine may have an NVIDIA GPU, asked without CUDA's libraries.
//
// Before: an operator's `--device auto`. After: worker/engine/plugin/open_engine.h loads the
// plug-in, or cli/local/local.cc refuses what no CPU computes.

#include "absl/status/status.h"

namespace poseidon {

/// OK where the driver's library is. FAILED_PRECONDITION: "this machine has no NVIDIA driver".
absl::Status find_nvidia_driver();

}  // namespace poseidon
