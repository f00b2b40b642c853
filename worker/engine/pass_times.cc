#include "worker/engine/pass_times.h"

#include <utility>

#include "common/check.h"
#include "common/status_macros.h"

namespace poseidon {

absl::StatusOr<PassTimes> PassTimes::create(Device* device, std::size_t intervals) {
  PassTimes times;
  times.device_ = device;
  for (std::size_t i = 0; i < intervals; ++i) {
    Marks marks;
    POSEIDON_ASSIGN_OR_RETURN(marks.begin, device->make_mark());
    if (marks.begin == nullptr) break;
    POSEIDON_ASSIGN_OR_RETURN(marks.end, device->make_mark());
    times.marks_.push_back(std::move(marks));
  }
  times.layers_.reserve(times.marks_.size());
  times.intervals_.reserve(times.marks_.size());
  return times;
}

void PassTimes::begin_pass() {
  layers_.clear();
  intervals_.clear();
}

absl::Status PassTimes::begin(LayerIndex layer) {
  if (marks_.empty()) return absl::OkStatus();
  POSEIDON_CHECK(layers_.size() < marks_.size(), "an interval of a pass");
  layers_.push_back(layer);
  return device_->mark(*marks_[layers_.size() - 1].begin);
}

absl::Status PassTimes::end() {
  return layers_.empty() ? absl::OkStatus() : device_->mark(*marks_[layers_.size() - 1].end);
}

absl::Status PassTimes::read() {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const DeviceMark& first = *marks_.front().begin;
    LayerInterval interval{.layer = layers_[i]};
    POSEIDON_ASSIGN_OR_RETURN(interval.begin, device_->time_between(first, *marks_[i].begin));
    POSEIDON_ASSIGN_OR_RETURN(interval.end, device_->time_between(first, *marks_[i].end));
    intervals_.push_back(interval);
  }
  return absl::OkStatus();
}

}  // namespace poseidon
