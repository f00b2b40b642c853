#pragma once

// The seam to several cores: a loop over the elements of a chunk, split by position.
//
// Before: sync/chunks/aggregator.h and server/shard/shard.h decide, on one thread, what is summed
// and stepped. After: common/base/thread_team.h has threads that do it together; SequentialTeam,
// the twin, does it alone.
//
// Ranges lie where they lie however many threads there are, and whoever takes one does with it what
// all others would do: results of elementwise loops have the same bits with any team.

#include <algorithm>
#include <cstddef>

#include "absl/functional/function_ref.h"

namespace poseidon {

class Team {
 public:
  /// A range's elements, but for the last one's: 32 KiB of float32. What a step reads and writes of
  /// a range, in up to seven arrays, then stays in a core's second cache, and ranges begin with a
  /// cache line in every array that does, whatever its type.
  static constexpr std::size_t kRangeElements = 8192;

  /// Does elements [first, first + size); size > 0. Runs on any thread of the team, for several
  /// ranges at once: it must write nothing that another range reads or writes.
  using Body = absl::FunctionRef<void(std::size_t first, std::size_t size)>;

  virtual ~Team() = default;
  /// body(first, size) for every range of [0, elements), each once, in any order. What they have
  /// written is there when it returns. One call at a time, and none by a body.
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

/// The one for whoever has no threads to give. It has no state, so any number of threads may call
/// it.
inline Team* sequential_team() {
  static SequentialTeam team;
  return &team;
}

}  // namespace poseidon
