#pragma once

// Remembers, by place, nodes that failed before they completed a new iteration, and nodes that
// others cannot reach. A process that fails and restarts repeatedly must not stop the others each
// time: nodes from its place are refused for a pause that doubles with each failure. Pure.
//
// Called by: coordinator/job/staffing/suspects.h, when a newcomer fails and when it chooses a node
// for a place. Calls: nothing.

#include <map>
#include <string>

#include "common/base/clock.h"
#include "coordinator/members/membership.h"

namespace poseidon {

struct MishapOptions {
  /// The pause from the second successive failure at one place, until the next node from there is
  /// accepted. Doubles with each.
  Nanoseconds first_pause = std::chrono::seconds(10);
  Nanoseconds longest_doubled_pause = std::chrono::hours(1);
};

class Mishaps {
 public:
  explicit Mishaps(MishapOptions options) : options_(options) {}

  /// `cost`: the time that the others waited for it. A pause is a multiple of that.
  void count(const NodeInfo& newcomer, Nanoseconds cost, Nanoseconds now);
  /// Whether a failed node came from the place of `node`.
  bool knows(const NodeInfo& node) const;
  /// `needed`: the job cannot continue without it, so the pause is short.
  bool may_try(const NodeInfo& node, bool needed, Nanoseconds now) const;
  /// The node has proved itself: clears its place.
  void forget(const NodeInfo& node);

 private:
  struct InARow {
    int count = 0;
    Nanoseconds last{0};   ///< when
    Nanoseconds until{0};  ///< nodes from there are not accepted before, unless needed
  };

  const MishapOptions options_;
  std::map<std::string, InARow> by_place_;
};

}  // namespace poseidon
