#pragma once

// How long a job has trained, and how fast. Pure.
//
// Called by: coordinator/job/training.h, with iterations, perhaps many at once that were made while
// the coordinator was away; metrics.jsonl and the status show the result.
// Calls: reports.h.

#include <optional>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "coordinator/job/reports/reports.h"

namespace poseidon {

/// One job's. Seconds are since its training began, or, where this process goes on with another
/// one's job, since its epoch's did.
class TrainingPace {
 public:
  /// An epoch begins to train at this iteration.
  void begin_epoch(Nanoseconds now, Iteration first);
  /// One that began then trains; how far it is will be told.
  void go_on(Nanoseconds began, Nanoseconds now, Iteration first);
  /// So many images of the epoch are done since `ended`, which counts as the beginning where it is
  /// before that. Per second, over the time until then.
  double on_iteration(Nanoseconds ended, double images);

  bool has_begun() const { return began_.has_value(); }
  /// That was next when it began.
  Iteration first() const { return first_; }
  double images_per_s(Nanoseconds now) const { return images_.per_second(now); }
  double seconds_until(Nanoseconds now) const { return began_ ? seconds(now - *began_) : 0.0; }
  /// Until the last iteration ended.
  double iterated_seconds() const { return seconds_until(iterated_); }

 private:
  std::optional<Nanoseconds> began_;
  Iteration first_ = 0;
  Nanoseconds iterated_{0};
  RateWindow images_;
};

}  // namespace poseidon
