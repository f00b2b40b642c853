#include "coordinator/job/reports/training_pace.h"

#include <algorithm>

#include "common/base/check.h"

namespace poseidon {

void TrainingPace::begin_epoch(Nanoseconds now, Iteration first) {
  if (!began_) {
    began_ = now;
    first_ = first;
  }
  iterated_ = now;
  images_.clear();
  images_.add(now, 0.0);
}

void TrainingPace::go_on(Nanoseconds began, Nanoseconds now, Iteration first) {
  began_ = began;
  first_ = first;
  iterated_ = now;
  // What was made while nobody was here is told of with its time: first comes the speed since then.
  images_.add(began, 0.0);
}

double TrainingPace::on_iteration(Nanoseconds ended, double images) {
  POSEIDON_CHECK(began_.has_value(), "an iteration is one of an epoch that trains");
  iterated_ = std::max(ended, *began_);
  images_.add(iterated_, images);
  return images_.per_second(iterated_);
}

}  // namespace poseidon
