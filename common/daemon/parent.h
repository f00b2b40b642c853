#pragma once

// Ends this process when the process that started it ends.
//
// Called by: daemon.h (--exit-with-parent), cli/local/program_run.h. Calls: the system.

#include <sys/types.h>

#include "absl/status/status.h"

namespace poseidon {

/// Asks for SIGTERM at the end of the thread of `parent` that started this process; a program that
/// this process executes keeps that. CANCELLED: `parent` is not this process's parent, or has
/// ended.
absl::Status follow_parent(pid_t parent);

}  // namespace poseidon
