#pragma once

// Measures how many bytes of gradients per second this server sums and steps, for planning. It runs
// the real aggregator and optimizer on memory of their own.
//
// Called by: server/server_node.h, for a Calibrate task; the coordinator puts the result into the
// plan's calibration. Calls: sync/chunks/aggregator.h, common/tensor/optimizer.h.

#include <cstdint>

#include "common/base/clock.h"
#include "common/tensor/optimizer.h"
#include "common/threads/team.h"

namespace poseidon {

struct SumsTask {
  std::int64_t chunk_bytes = 2 << 20;  ///< of float32
  std::uint32_t workers = 1;
  OptimizerSpec optimizer;
  Nanoseconds max_time = Milliseconds(100);  ///< no chunk begins after it; at least one is summed
  const Clock* clock = nullptr;
  Team* team = sequential_team();  ///< the team of the loop thread
};

/// Bytes of all workers' contributions processed per second. Runs on the calling thread, with its
/// team.
double measure_sums(const SumsTask& task);

}  // namespace poseidon
