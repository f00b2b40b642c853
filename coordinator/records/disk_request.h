#pragma once

// A write that must reach the coordinator's disk before a job continues. When it fails (a full
// disk), it is repeated after a pause. Pure.
//
// Called by: coordinator/job/, for the number of a new epoch or a manifest; it sends the
// action and reports the result here. Calls: nothing.

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/clock.h"

namespace poseidon {

class DiskRequest {
 public:
  static constexpr Nanoseconds kPause = std::chrono::seconds(3);

  /// Neither in progress nor refused a moment ago.
  bool is_due(Nanoseconds now) const { return !is_under_way_ && now >= again_; }
  bool is_under_way() const { return is_under_way_; }
  /// The time waited so far; only while in progress.
  Nanoseconds waited(Nanoseconds now) const { return now - asked_; }
  void ask(Nanoseconds now) {
    is_under_way_ = true;
    asked_ = now;
  }
  /// The request was answered, even if refused. False when there was none.
  bool answer() { return std::exchange(is_under_way_, false); }
  /// The request was refused. Returns whether the reason is new.
  bool refused(const std::string& why, Nanoseconds now) {
    is_under_way_ = false;
    again_ = now + kPause;
    return std::exchange(why_, why) != why;
  }
  void granted() { why_.clear(); }
  /// Reason of the last refusal; "" when the last request was not refused.
  const std::string& why() const { return why_; }
  /// Excludes `duration`, during which no answer was possible, from the waiting time.
  void extend_deadlines(Nanoseconds duration, Nanoseconds now) {
    asked_ = std::min(asked_ + duration, now);
  }

 private:
  bool is_under_way_ = false;
  Nanoseconds asked_{0};
  Nanoseconds again_{0};
  std::string why_;
};

}  // namespace poseidon
