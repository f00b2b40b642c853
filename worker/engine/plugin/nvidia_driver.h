#pragma once

// Detects, without CUDA's libraries, whether this machine may have an NVIDIA GPU.
//
// Called by: worker/engine/plugin/open_engine.h for `--device auto`, before it loads the plug-in;
// cli/local/local.cc, which refuses jobs that no CPU computes. Calls: the file system.

#include "absl/status/status.h"

namespace poseidon {

/// OK where the driver's library is. FAILED_PRECONDITION: "this machine has no NVIDIA driver".
absl::Status find_nvidia_driver();

}  // namespace poseidon
