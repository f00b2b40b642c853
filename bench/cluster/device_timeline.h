#pragma once

// Computes when an emulated device finishes its work: one queue, in order, like a stream of a real
// GPU. Pure: the caller passes the time.

#include <algorithm>

#include "common/base/clock.h"

namespace poseidon::bench {

class DeviceTimeline {
 public:
  /// What can be done as soon as the device is free: its inputs were there before. The host may be
  /// late to say so (it overslept, or other processes have the machine's cores): that costs
  /// nothing, as it costs a real card nothing whose queue is never empty. Returns when it is done.
  Nanoseconds follow(Nanoseconds duration) {
    free_at_ += duration;
    return free_at_;
  }

  /// What had to wait for something that came at `now`.
  Nanoseconds run_after(Nanoseconds now, Nanoseconds duration) {
    free_at_ = std::max(free_at_, now) + duration;
    return free_at_;
  }

  Nanoseconds free_at() const { return free_at_; }

 private:
  Nanoseconds free_at_{0};
};

}  // namespace poseidon::bench
