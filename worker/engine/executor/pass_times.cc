#include "worker/engine/executor/pass_times.h"

#include <utility>

#include "common/base/check.h"

namespace poseidon {

absl::StatusOr<std::vector<PassTimes::Marks>> PassTimes::make_marks(Device* device,
                                                                    std::size_t count) {
  std::vector<Marks> made;
  made.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    Marks& marks = made.emplace_back();
    POSEIDON_ASSIGN_OR_RETURN(marks.begin, device->make_mark());
    POSEIDON_ASSIGN_OR_RETURN(marks.end, device->make_mark());
  }
  return made;
}

absl::StatusOr<PassTimes> PassTimes::create(Device* device, std::size_t intervals,
                                            std::size_t copies) {
  PassTimes times;
  times.device_ = device;
  POSEIDON_ASSIGN_OR_RETURN(times.origin_, device->make_mark());
  if (!times.has_clock()) return times;
  POSEIDON_ASSIGN_OR_RETURN(times.layer_marks_, make_marks(device, intervals));
  POSEIDON_ASSIGN_OR_RETURN(times.copy_marks_, make_marks(device, copies));
  times.begun_.reserve(intervals);
  times.intervals_.reserve(intervals);
  times.started_.reserve(copies);
  times.copies_.reserve(copies);
  return times;
}

absl::Status PassTimes::begin_pass() {
  begun_.clear();
  started_.clear();
  intervals_.clear();
  copies_.clear();
  if (!has_clock() || wanted_ == PassTiming::kNothing) return absl::OkStatus();
  return device_->mark(*origin_);
}

absl::Status PassTimes::begin(LayerIndex layer) {
  if (!has_clock() || wanted_ == PassTiming::kNothing) return absl::OkStatus();
  POSEIDON_CHECK(begun_.size() < layer_marks_.size(), "an interval of a pass");
  begun_.push_back({.layer = layer});
  return device_->mark(*layer_marks_[begun_.size() - 1].begin);
}

absl::Status PassTimes::end() {
  return begun_.empty() ? absl::OkStatus() : device_->mark(*layer_marks_[begun_.size() - 1].end);
}

CopyMarks PassTimes::copy(Stage stage, std::optional<LayerIndex> layer, std::int64_t bytes) {
  if (wanted_ != PassTiming::kLayersAndCopies || started_.size() == copy_marks_.size()) return {};
  const Marks& marks = copy_marks_[started_.size()];
  started_.push_back({.stage = stage, .layer = layer, .bytes = bytes});
  return {.begin = marks.begin.get(), .end = marks.end.get()};
}

template <typename Interval>
absl::Status PassTimes::read(const Marks& marks, Interval& interval) {
  POSEIDON_ASSIGN_OR_RETURN(interval.begin, device_->time_between(*origin_, *marks.begin));
  POSEIDON_ASSIGN_OR_RETURN(interval.end, device_->time_between(*origin_, *marks.end));
  return absl::OkStatus();
}

absl::Status PassTimes::read() {
  for (std::size_t i = 0; i < begun_.size(); ++i) {
    POSEIDON_RETURN_IF_ERROR(read(layer_marks_[i], intervals_.emplace_back(begun_[i])));
  }
  for (std::size_t i = 0; i < started_.size(); ++i) {
    POSEIDON_RETURN_IF_ERROR(read(copy_marks_[i], copies_.emplace_back(started_[i])));
  }
  return absl::OkStatus();
}

}  // namespace poseidon
