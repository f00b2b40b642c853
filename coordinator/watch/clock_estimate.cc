#include "coordinator/watch/clock_estimate.h"

namespace poseidon {
namespace {

/// Longer than any machine is on; within it nothing below overflows.
constexpr Nanoseconds kMostTime = std::chrono::hours(24 * 366 * 50);

}  // namespace

std::optional<ClockOffset> clock_offset(const ClockSample& sample) {
  for (const Nanoseconds time : {sample.asked, sample.received, sample.sent, sample.answered}) {
    if (time < Nanoseconds{0} || time > kMostTime) return std::nullopt;
  }
  const Nanoseconds there = sample.received - sample.asked;
  const Nanoseconds back = sample.sent - sample.answered;
  const Nanoseconds way = (sample.answered - sample.asked) - (sample.sent - sample.received);
  if (way < Nanoseconds{0} || sample.sent < sample.received) return std::nullopt;
  return ClockOffset{.offset = (there + back) / 2, .error = (way + Nanoseconds{1}) / 2};
}

void ClockEstimate::add(const ClockSample& sample) {
  const std::optional<ClockOffset> offset = clock_offset(sample);
  if (!offset) return;
  if (count_ == 0 || offset->error < best_.error) best_ = *offset;
  ++count_;
}

}  // namespace poseidon
