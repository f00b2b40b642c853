#pragma once

// What this process costs its machine, as the kernel counts it.

#include <cstdint>

namespace poseidon {

struct ProcessLoad {
  std::uint64_t machine = 0;  ///< hash of the boot id: equal on one machine, whatever network or
                              ///< container the process is in; 0: unknown
  std::uint32_t cores = 0;    ///< that it may use
  double cpu_seconds = 0.0;   ///< of all its threads since it began
  /// Its threads were ready to run and no core was free; of the threads that live. 0 where the
  /// kernel does not tell.
  double cpu_wait_seconds = 0.0;
};

/// Reads some small files of /proc: well below a millisecond.
ProcessLoad process_load();

}  // namespace poseidon
