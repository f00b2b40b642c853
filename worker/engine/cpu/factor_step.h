#pragma once

// A fully connected layer's optimizer step from stacked factors, on the CPU.
//
// Called by: worker/executor_factors.h, when all workers' factors have arrived. Calls: oneDNN,
// common/tensor/optimizer.h.
//
// The gradient is never in memory as a whole. The weight is cut into tiles of a fixed size; a
// tile's gradient is one oneDNN product on a single thread, and its step follows while it is in the
// cache. Threads divide the tiles among themselves. Each tile's product uses one thread, so the
// number of threads changes no bit.

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/device.h"

namespace poseidon {

/// Elements of scratch memory that cpu_step_from_factors needs: a tile per thread.
std::size_t factor_step_scratch(int threads);

/// `threads`: what OpenMP regions of this thread are set to, before and after.
absl::Status cpu_step_from_factors(const FactorStepArgs& args, int threads,
                                   std::span<float> scratch);

/// Sums of squares of the same gradient, tile by tile in their order: no bit depends on `threads`.
absl::StatusOr<FactorSquares> cpu_measure_factors(const FactorStepArgs& args, int threads,
                                                  std::span<float> scratch);

}  // namespace poseidon
