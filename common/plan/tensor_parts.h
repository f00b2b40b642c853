#pragma once

// Maps the elements of a chunk to the tensors of its layer. Tensors lie end to end, and a chunk may
// straddle them. Pure.
//
// Called by: common/wire/wire.h, server/shard/shard.h, sync/routes and
// worker/executor_factors.h. Calls: common/plan/plan.h.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/plan/plan.h"

namespace poseidon {

struct TensorPart {
  std::size_t begin = 0;   ///< elements from the start of the chunk
  std::size_t size = 0;    ///< > 0
  std::size_t tensor = 0;  ///< position in PlanLayer::tensors; 0 where the layer names none
  StepMultipliers multipliers;
};

/// The tensors of a layer; one where it names none.
inline std::size_t tensor_count(const PlanLayer& layer) {
  return std::max<std::size_t>(1, layer.tensors.size());
}

/// The parts of elements [offset, offset + elements) of the layer, in ascending order and without
/// gaps.
std::vector<TensorPart> tensor_parts(const PlanLayer& layer, std::int64_t offset,
                                     std::int64_t elements);

/// Calls use(index of the part, begin, size) for the overlap of [first, first + size) with each
/// part.
template <typename Use>
void for_each_part(const std::vector<TensorPart>& parts, std::size_t first, std::size_t size,
                   const Use& use) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t begin = std::max(first, parts[i].begin);
    const std::size_t end = std::min(first + size, parts[i].begin + parts[i].size);
    if (begin < end) use(i, begin, end - begin);
  }
}

}  // namespace poseidon
