#pragma once

// The seam to several cores: a loop over the elements of a chunk, split by position.
//
// Called by: sync/chunks/aggregator.h and server/shard/shard.h, which decide on one thread what to
// sum and step. Calls: common/threads/thread_team.h runs the loop on several threads;
// SequentialTeam, the twin, runs it on the caller's.
//
// The ranges do not depend on the number of threads, and every thread does the same to a range. So
// elementwise loops give the same bits with any team.

#include <algorithm>
#include <cstddef>

#include "absl/functional/function_ref.h"

namespace poseidon {

class Team {
 public:
  /// Elements of a range (the last may be shorter): 32 KiB of float32. The up to seven arrays that
  /// a step touches for one range then fit in a core's L2 cache. If an array begins on a cache
  /// line, so does each of its ranges, whatever the element type.
  static constexpr std::size_t kRangeElements = 8192;

  /// Does elements [first, first + size); size > 0. Runs on any thread of the team, for several
  /// ranges at once: it must write nothing that another range reads or writes.
  using Body = absl::FunctionRef<void(std::size_t first, std::size_t size)>;

  virtual ~Team() = default;
  /// body(first, size) for every range of [0, elements), each once, in any order. All writes are
  /// visible when it returns. One call at a time; a body must not call it.
  virtual void for_ranges(std::size_t elements, Body body) = 0;
};

/// On the calling thread, in ascending order.
class SequentialTeam final : public Team {
 public:
  void for_ranges(std::size_t elements, Body body) override {
    for (std::size_t first = 0; first < elements; first += kRangeElements) {
      body(first, std::min(kRangeElements, elements - first));
    }
  }
};

/// A shared SequentialTeam for callers without threads. It has no state, so any thread may call it.
inline Team* sequential_team() {
  static SequentialTeam team;
  return &team;
}

}  // namespace poseidon
