#pragma once

// Whether the system lets a process start the threads that it needs. A library that is refused a
// thread aborts the process, or waits for that thread when it stops, so the question comes first.
//
// Called by: common/daemon/daemon.h, when a daemon starts; cli/local/local.h, for all processes of
// a local cluster. Calls: POSIX threads.

#include <cstddef>
#include <string>

#include "absl/status/status.h"

namespace poseidon {

/// Starts `count` threads that do nothing, and ends them: some 20 microseconds each.
/// RESOURCE_EXHAUSTED where the system refuses one, with `who`, both numbers, the limit and the
/// remedy. Other processes of the same user may take what is left at any time. Any thread.
absl::Status check_threads(std::size_t count, const std::string& who);

/// From now on an exception that no code catches, such as that of a thread that cannot be started,
/// ends the process with exit code 1 and one line on stderr which begins with `program`. Its text
/// must live as long as the process.
void end_at_uncaught_exceptions(const char* program);

}  // namespace poseidon
