#pragma once

// Places buffers with limited lifetimes in one range of memory, so that buffers that are never
// alive together share it. Pure.
//
// Called by: network_executor.cc, which allocates the range, with lifetimes from
// tensor_lifetimes.h. Calls: nothing.

#include <cstdint>
#include <span>
#include <vector>

namespace poseidon {

/// A buffer of a schedule of numbered steps. It is alive from its first to its last step, both
/// included.
struct BufferUse {
  std::int64_t bytes = 0;
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
};

struct MemoryPlan {
  std::int64_t total_bytes = 0;
  std::vector<std::int64_t> offsets;  ///< per buffer, multiples of kPlanAlignmentBytes
};
inline constexpr std::int64_t kPlanAlignmentBytes = 64;

/// Buffers alive at the same step do not overlap. Largest first, each into the smallest gap that
/// fits between those placed already, else behind them: Pisarchyk, Lee, "Efficient Memory
/// Management for Deep Neural Net Inference", 2020, section 5.2. The sum of all sizes must fit into
/// 63 bits. Equal arguments give equal plans.
MemoryPlan plan_memory(std::span<const BufferUse> buffers);

}  // namespace poseidon
