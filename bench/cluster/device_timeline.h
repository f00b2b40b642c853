#pragma once

// Computes when an emulated device finishes its work: one queue, in order, like a stream of a real
// GPU. Pure: the caller passes the time.

#include <algorithm>

#include "common/base/clock.h"

namespace poseidon::bench {

class DeviceTimeline {
 public:
  /// Queues work whose inputs are ready, so it runs when the device is free. A late host (it
  /// overslept, or other processes use the cores) costs nothing, as with a real GPU whose queue is
  /// never empty. Returns the time at which it is done.
  Nanoseconds follow(Nanoseconds duration) {
    free_at_ += duration;
    return free_at_;
  }

  /// Queues work that waited for an input which came at `now`.
  Nanoseconds run_after(Nanoseconds now, Nanoseconds duration) {
    free_at_ = std::max(free_at_, now) + duration;
    return free_at_;
  }

  Nanoseconds free_at() const { return free_at_; }

 private:
  Nanoseconds free_at_{0};
};

}  // namespace poseidon::bench
