#include "common/plan/tensor_parts.h"

namespace poseidon {

std::vector<TensorPart> tensor_parts(const PlanLayer& layer, std::int64_t offset,
                                     std::int64_t elements) {
  if (layer.tensors.empty()) {
    return {{.begin = 0, .size = static_cast<std::size_t>(elements), .tensor = 0}};
  }
  std::vector<TensorPart> parts;
  std::int64_t at = 0;
  for (std::size_t t = 0; t < layer.tensors.size(); ++t) {
    const std::int64_t begin = std::max(at, offset);
    at += layer.tensors[t].elements;
    const std::int64_t end = std::min(at, offset + elements);
    if (begin >= end) continue;
    parts.push_back({.begin = static_cast<std::size_t>(begin - offset),
                     .size = static_cast<std::size_t>(end - begin),
                     .tensor = t,
                     .multipliers = layer.tensors[t].multipliers});
  }
  return parts;
}

}  // namespace poseidon
