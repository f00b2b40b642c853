#pragma once

// Keeps what a running total was at several moments of the last seconds, for its recent rate. Pure.
//
// Called by: load_monitor.h, coordinator/watch/traffic.h, coordinator/job/reports/reports.h.
// Calls: nothing.

#include <cstddef>
#include <deque>
#include <utility>

#include "common/base/clock.h"

namespace poseidon {

/// Samples in the order of their times. The oldest is the last one from before the window (or the
/// first ever), so that a slow count has a rate, too.
template <typename Totals>
class SampleWindow {
 public:
  static constexpr Nanoseconds kLength = std::chrono::seconds(5);
  /// Totals that arrive within this time after the newest sample replace its totals. After a pause
  /// of the coordinator all heartbeats of that time arrive at once; as samples of their own they
  /// would make the rate that of the whole pause, divided by milliseconds.
  static constexpr Nanoseconds kBurst = std::chrono::milliseconds(50);

  struct Sample {
    Nanoseconds time;
    Totals totals;
    double seconds_since(const Sample& earlier) const { return seconds(time - earlier.time); }
  };

  /// `now` is not before the last sample's.
  void add(Nanoseconds now, Totals totals) {
    // The first sample stays as it is: what comes at once after the beginning counts from there.
    if (samples_.size() >= 2 && now - samples_.back().time < kBurst) {
      samples_.back().totals = std::move(totals);
    } else {
      samples_.push_back({now, std::move(totals)});
    }
    while (samples_.size() > 2 && samples_[1].time <= now - kLength) samples_.pop_front();
  }
  void clear() { samples_.clear(); }

  bool empty() const { return samples_.empty(); }
  std::size_t size() const { return samples_.size(); }
  const Sample& operator[](std::size_t n) const { return samples_[n]; }
  /// Of a window that is not empty.
  const Sample& oldest() const { return samples_.front(); }
  const Sample& newest() const { return samples_.back(); }

 private:
  std::deque<Sample> samples_;
};

}  // namespace poseidon
