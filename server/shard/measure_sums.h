#pragma once

// How many bytes of gradients per second this server sums and steps with: what planning wants to
// know before a job. The real aggregator and optimizer, on memory of their own.
//
// Before: a Calibrate task. After: the coordinator puts it into the plan's calibration.

#include <cstdint>

#include "common/base/clock.h"
#include "common/base/team.h"
#include "common/tensor/optimizer.h"

namespace poseidon {

struct SumsTask {
  std::int64_t chunk_bytes = 2 << 20;  ///< of float32
  std::uint32_t workers = 1;
  OptimizerSpec optimizer;
  Nanoseconds max_time = Milliseconds(100);  ///< no chunk begins after it; one is always summed
  const Clock* clock = nullptr;
  Team* team = sequential_team();  ///< whom the loop thread would have to help it
};

/// Bytes of all workers' contributions taken in per second. On the calling thread, with its team.
double measure_sums(const SumsTask& task);

}  // namespace poseidon
