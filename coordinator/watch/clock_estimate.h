#pragma once

// How far a node's clock is from the coordinator's, from questions and answers. Pure.
//
// Of one question and its answer only the whole way is known, not how it divides (as in NTP): the
// offset of the shortest way is taken, and cannot be further off than half of that way.

#include <cstdint>
#include <optional>

#include "common/base/clock.h"

namespace poseidon {

/// One question and its answer. `asked` and `answered` are the coordinator's clock, the others the
/// node's.
struct ClockSample {
  Nanoseconds asked{0}, received{0}, sent{0}, answered{0};
};

/// The node's clock less the coordinator's.
struct ClockOffset {
  Nanoseconds offset{0};
  Nanoseconds error{0};  ///< at most
};

/// Nothing when the sample contradicts itself: it took no time, or less than none.
std::optional<ClockOffset> clock_offset(const ClockSample& sample);

/// The best of several samples.
class ClockEstimate {
 public:
  void add(const ClockSample& sample);
  /// Samples that made sense.
  std::uint32_t count() const { return count_; }
  /// Zero before there is any.
  const ClockOffset& best() const { return best_; }

 private:
  std::uint32_t count_ = 0;
  ClockOffset best_;
};

}  // namespace poseidon
