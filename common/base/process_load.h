#pragma once

// What this process has of its machine and costs it, as the kernel counts it.

#include <sched.h>

#include <cstddef>
#include <cstdint>

namespace poseidon {

struct ProcessLoad {
  std::uint64_t machine = 0;  ///< hash of the boot id: equal on one machine, whatever network or
                              ///< container the process is in; 0: unknown
  std::uint32_t cores = 0;    ///< that it may use; 0: unknown
  double cpu_seconds = 0.0;   ///< of all its threads since it began
  /// Its threads were ready to run and no core was free; of the threads that live. 0 where the
  /// kernel does not tell.
  double cpu_wait_seconds = 0.0;
};

/// Fills a set of `bytes`: 0, or -1 and errno.
using AffinityCall = int (*)(std::size_t bytes, cpu_set_t* set);

/// How many cores this process may use, of however many the machine has; 0: the kernel does not
/// tell.
std::uint32_t allowed_cores(AffinityCall affinity);

/// Of this process, at least 1.
int usable_cores();

/// Of the machine; a container may be allowed less.
std::uint64_t installed_memory_bytes();

/// Of all threads since it began, in user and system mode; one system call.
double process_cpu_seconds();

/// Reads some small files of /proc: well below a millisecond.
ProcessLoad process_load();

}  // namespace poseidon
