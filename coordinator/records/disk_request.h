#pragma once

// What must be on the coordinator's disk before a job goes on, and may not find room there: asked
// for, and once more after a pause. Pure.
//
// Before: job_run.h needs the number of a new epoch, or a manifest. After: it sends the action, and
// tells here how that ended.

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/clock.h"

namespace poseidon {

class DiskRequest {
 public:
  static constexpr Nanoseconds kPause = std::chrono::seconds(3);

  /// Neither under way nor refused just now.
  bool is_due(Nanoseconds now) const { return !is_under_way_ && now >= again_; }
  bool is_under_way() const { return is_under_way_; }
  /// While it is under way.
  Nanoseconds waited(Nanoseconds now) const { return now - asked_; }
  void ask(Nanoseconds now) {
    is_under_way_ = true;
    asked_ = now;
  }
  /// Answered, be it with no. False when nothing was asked for.
  bool answer() { return std::exchange(is_under_way_, false); }
  /// The answer was no. Whether the reason is another one than before.
  bool refused(const std::string& why, Nanoseconds now) {
    is_under_way_ = false;
    again_ = now + kPause;
    return std::exchange(why_, why) != why;
  }
  void granted() { why_.clear(); }
  /// Why the last one was refused; "" when it was not.
  const std::string& why() const { return why_; }
  /// So long nobody could answer.
  void forgive(Nanoseconds duration, Nanoseconds now) { asked_ = std::min(asked_ + duration, now); }

 private:
  bool is_under_way_ = false;
  Nanoseconds asked_{0};
  Nanoseconds again_{0};
  std::string why_;
};

}  // namespace poseidon
