#pragma once

// Measures a server's sums and steps with several threads: the real shard (server/shard/shard.h)
// with gradients from one or two workers, and the cost of splitting a loop.

#include <cstddef>
#include <string>
#include <vector>

namespace poseidon::bench {

struct ServerOptions {
  std::size_t mib = 64;     ///< of parameters; gradients, and two versions of parameters and
                            ///< momentum are as large each
  std::size_t rounds = 15;  ///< everything once in each
  int threads = 2;          ///< measured besides 1
};

/// One chunk size, wire type and number of workers, on so many threads.
struct ServerRow {
  std::string wire;
  std::size_t workers = 0;
  std::size_t chunk_bytes = 0;  ///< of float32
  int threads = 0;
  double bytes_per_s = 0;    ///< of gradients as float32, of all workers; the median of rounds
  double cpu_s_per_gb = 0;   ///< of the whole process
  double to_one_thread = 0;  ///< bytes_per_s to that in the same round; the median of ratios
};
std::vector<ServerRow> measure_server(const ServerOptions& options);

/// A loop that does nothing over one chunk.
struct SplitRow {
  std::size_t chunk_bytes = 0;  ///< of float32
  double awake_us = 0;          ///< right behind another
  double asleep_us = 0;         ///< after a millisecond, in which helpers have gone to sleep
};
std::vector<SplitRow> measure_split(const ServerOptions& options);

}  // namespace poseidon::bench
