#include "coordinator/members/unreachable_pairs.h"

#include <algorithm>

namespace poseidon {

void UnreachablePairs::add(NodeId one, NodeId other, Epoch epoch) {
  pairs_.try_emplace(std::minmax(one, other), epoch);
}

bool UnreachablePairs::known_before(NodeId one, NodeId other, Epoch epoch) const {
  return std::ranges::any_of(pairs_, [&](const auto& entry) {
    const auto& [pair, since] = entry;
    const bool has_either =
        pair.first == one || pair.second == one || pair.first == other || pair.second == other;
    return has_either && since < epoch;
  });
}

std::size_t UnreachablePairs::count(NodeId node) const {
  return static_cast<std::size_t>(std::ranges::count_if(pairs_, [&](const auto& entry) {
    return entry.first.first == node || entry.first.second == node;
  }));
}

void UnreachablePairs::forget(NodeId node) {
  std::erase_if(pairs_, [node](const auto& entry) {
    return entry.first.first == node || entry.first.second == node;
  });
}

}  // namespace poseidon
