#include "coordinator/members/mishaps.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace poseidon {
namespace {

/// A pause is this many times the cost of the mishap to all others.
constexpr int kPausePerCost = 50;

/// What a process has in common with the one that is started in its place.
std::string place_of(const NodeInfo& node) {
  return absl::StrCat(role_name(node.role), " ", node.peer_host, " ", node.device, " ",
                      node.store_identity);
}

}  // namespace

void Mishaps::count(const NodeInfo& newcomer, Nanoseconds cost, Nanoseconds now) {
  InARow& mishaps = by_place_[place_of(newcomer)];
  ++mishaps.count;
  mishaps.last = now;
  const bool took_long = cost > options_.first_pause;
  if (mishaps.count < 2 && !took_long) return;  // one mishap may happen to any node
  Nanoseconds pause = options_.first_pause;
  for (int i = 2; i < mishaps.count && pause < options_.longest_doubled_pause; ++i) pause *= 2;
  pause = std::min(pause, options_.longest_doubled_pause);
  if (took_long) pause = std::max(pause, kPausePerCost * cost);
  mishaps.until = now + pause;
}

bool Mishaps::knows(const NodeInfo& node) const { return by_place_.contains(place_of(node)); }

bool Mishaps::may_try(const NodeInfo& node, bool needed, Nanoseconds now) const {
  const auto found = by_place_.find(place_of(node));
  if (found == by_place_.end()) return true;
  const InARow& mishaps = found->second;
  return now >=
         (needed ? std::min(mishaps.last + options_.first_pause, mishaps.until) : mishaps.until);
}

void Mishaps::forget(const NodeInfo& node) { by_place_.erase(place_of(node)); }

}  // namespace poseidon
