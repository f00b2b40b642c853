#pragma once

// Reads from the kernel which resources this process may use and which it has used.
//
// Called by: daemons and cli. Calls: the kernel (/proc).

#include <sched.h>

#include <cstddef>
#include <cstdint>

namespace poseidon {

struct ProcessLoad {
  std::uint64_t machine = 0;  ///< hash of the boot id: equal for all processes of a machine, in any
                              ///< network or container; 0: unknown
  std::uint32_t cores = 0;    ///< that the process may use; 0: unknown
  double cpu_seconds = 0.0;   ///< of all its threads since the process began
  /// Time for which threads were ready to run but no core was free, over all living threads. 0
  /// where the kernel does not report it.
  double cpu_wait_seconds = 0.0;
};

/// Fills a set of `bytes`: 0, or -1 and errno.
using AffinityCall = int (*)(std::size_t bytes, cpu_set_t* set);

/// How many of the machine's cores this process may use; 0: the kernel does not report it.
std::uint32_t allowed_cores(AffinityCall affinity);

/// How many cores this process may use, at least 1.
int usable_cores();

/// Memory of the machine; a container's limit may be lower.
std::uint64_t installed_memory_bytes();

/// CPU time of all threads since the process began, user and system; one system call.
double process_cpu_seconds();

/// Reads a few small files in /proc; takes well below a millisecond.
ProcessLoad process_load();

}  // namespace poseidon
