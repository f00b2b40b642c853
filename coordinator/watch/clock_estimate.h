#pragma once

// Estimates the offset of a node's clock from the coordinator's by questions and answers. Pure.
//
// Called by: coordinator/watch/trace_run.h. Calls: nothing.
//
// One question and its answer only show the round trip, not how it divides (as in NTP). The
// estimate uses the shortest round trip, so its error is at most half of that.

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

/// nullopt when the sample is inconsistent: its round trip is zero or negative.
std::optional<ClockOffset> clock_offset(const ClockSample& sample);

/// The best of several samples.
class ClockEstimate {
 public:
  void add(const ClockSample& sample);
  /// Number of consistent samples.
  std::uint32_t count() const { return count_; }
  /// Zero before the first sample.
  const ClockOffset& best() const { return best_; }

 private:
  std::uint32_t count_ = 0;
  ClockOffset best_;
};

}  // namespace poseidon
