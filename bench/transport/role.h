#pragma once

// The program's role as a child process: one server or one worker of one variant.

#include <string>

#include "absl/status/status.h"

namespace poseidon::bench {

/// `role` is "server" or "worker"; `control` the descriptor of its end of the control line.
/// Returns when the parent closes the line.
absl::Status run_role(const std::string& role, int control);

}  // namespace poseidon::bench
