#pragma once

// The measurements of poseidon-bench-aggregate: every loop of the data path, in every form that
// this processor can run, and the best possible memory bandwidth of a core.
//
// Every loop goes once through arrays of float32 that are larger than the caches, in chunks of 2
// MiB, on one thread. `moved_bytes` is what it must read and write, n being the bytes of one array:
//   copy, copy_payload       2 n   read one array, write another
//   add, add_payload         3 n   read both, write one
//   add_..._16bit            2.5 n, convert 1.5 n
//   sgd                      3 n   read gradient and parameters, write parameters
//   momentum                 5 n   the same, and read and write the velocity
//   adam                     7 n   the same with two states
//   aggregator, P workers          one copy (P > 1), P - 2 additions, and the step: momentum with
//                                  the sum (P > 1) and one contribution as its gradient
// Not counted: the read of a line before an ordinary store overwrites it, so a copy with streaming
// stores shows a higher figure than an ordinary one.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace poseidon::bench {

struct Loop {
  std::string name;     ///< "add_payload/frames_16k"
  std::string kernels;  ///< "avx2", or "core" for a loop that is written here, as a yardstick
  double moved_bytes = 0;
  std::function<void()> run;  ///< once through all chunks; refers to memory that it keeps alive
};

/// `mib`: MiB of each array, at least 2.
std::vector<Loop> all_loops(std::size_t mib);

}  // namespace poseidon::bench
