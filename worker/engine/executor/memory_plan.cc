#include "worker/engine/executor/memory_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/base/check.h"

namespace poseidon {
namespace {

std::int64_t aligned(std::int64_t bytes) {
  return (std::max<std::int64_t>(bytes, 1) + kPlanAlignmentBytes - 1) / kPlanAlignmentBytes *
         kPlanAlignmentBytes;
}

bool meet(const BufferUse& a, const BufferUse& b) {
  return a.first_step <= b.last_step && b.first_step <= a.last_step;
}

/// The start of the smallest gap that takes `bytes`, or the end of them all. `taken` has buffers
/// by offset, as indices into `buffers` and `offsets`.
std::int64_t best_gap(const BufferUse& wanted, std::span<const BufferUse> buffers,
                      std::span<const std::int64_t> offsets, std::span<const std::size_t> taken) {
  std::int64_t best = -1;
  std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
  std::int64_t end = 0;
  for (const std::size_t other : taken) {
    if (!meet(wanted, buffers[other])) continue;
    const std::int64_t gap = offsets[other] - end;
    if (gap >= aligned(wanted.bytes) && gap < smallest) {
      smallest = gap;
      best = end;
    }
    end = std::max(end, offsets[other] + aligned(buffers[other].bytes));
  }
  return best >= 0 ? best : end;
}

}  // namespace

MemoryPlan plan_memory(std::span<const BufferUse> buffers) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return buffers[a].bytes > buffers[b].bytes;
  });
  MemoryPlan plan;
  plan.offsets.resize(buffers.size());
  std::vector<std::size_t> taken;  // by offset
  for (const std::size_t buffer : order) {
    const BufferUse& use = buffers[buffer];
    POSEIDON_CHECK(use.bytes >= 0 && use.first_step <= use.last_step, "a buffer that is used");
    plan.offsets[buffer] = best_gap(use, buffers, plan.offsets, taken);
    plan.total_bytes = std::max(plan.total_bytes, plan.offsets[buffer] + aligned(use.bytes));
    const auto place = std::upper_bound(
        taken.begin(), taken.end(), plan.offsets[buffer],
        [&](std::int64_t offset, std::size_t other) { return offset < plan.offsets[other]; });
    taken.insert(place, buffer);
  }
  return plan;
}

}  // namespace poseidon
