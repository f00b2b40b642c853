#pragma once

// A fully connected layer's optimizer step from stacked factors, on the CPU.
//
// Before: worker/executor_factors.h, once all workers' factors are here. After: the layer's
// parameters have one more step in them.
//
// The gradient is never in memory as a whole. The weight is cut into tiles of a fixed size; a
// tile's gradient is one product of oneDNN's on a single thread, and is stepped with while it is in
// the cache. Threads share the tiles out, so their number changes no bit: whatever a product of
// several threads does (split its sums, say), a tile's does not see it.

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
