#include "common/node/report_outbox.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace poseidon {
namespace {

std::optional<std::uint64_t> epoch_of(const v1::NodeMessage& message) {
  switch (message.body_case()) {
    case v1::NodeMessage::kReady:
      return message.ready().epoch();
    case v1::NodeMessage::kIteration:
      return message.iteration().epoch();
    case v1::NodeMessage::kTest:
      return message.test().epoch();
    case v1::NodeMessage::kFinished:
      return message.finished().epoch();
    case v1::NodeMessage::kFailed:
      return message.failed().epoch();
    case v1::NodeMessage::kHalted:
      return message.halted().epoch();
    case v1::NodeMessage::kCheckpoint:
      return message.checkpoint().epoch();
    case v1::NodeMessage::kModel:
      return message.model().epoch();
    default:
      return std::nullopt;
  }
}

/// Whether the coordinator said that it has this one. That a checkpoint failed it can not have: it
/// knows those alone that were committed, and may wait for an older one.
bool is_known(const v1::NodeMessage& message, const v1::Resumed& lacks) {
  return (message.has_test() && message.test().iteration() < lacks.next_test()) ||
         (message.has_checkpoint() && message.checkpoint().stored() &&
          message.checkpoint().iteration() < lacks.next_checkpoint());
}

}  // namespace

void ReportOutbox::begin(Epoch epoch, std::uint32_t index, Iteration first) {
  end();
  epoch_ = epoch;
  index_ = index;
  oldest_ = first;
  sent_ = first;
}

bool ReportOutbox::add(const v1::NodeMessage& message, Nanoseconds now) {
  const std::optional<std::uint64_t> epoch = epoch_of(message);
  if (!epoch_ || !epoch || Epoch(*epoch) != *epoch_) return false;
  if (message.has_iteration() &&
      message.iteration().iteration() == static_cast<std::uint64_t>(end_iteration())) {
    iterations_.push_back({.loss = message.iteration().loss(), .since = now});
    if (iterations_.size() > kKeptIterations) {
      iterations_.pop_front();
      ++oldest_;
    }
    return true;
  }
  if (message.has_checkpoint() && !message.checkpoint().stored()) {
    // A part that is gone must not be told of to another coordinator: it would count for a
    // checkpoint.
    withdraw([&](const v1::NodeMessage& earlier) {
      return earlier.has_checkpoint() &&
             earlier.checkpoint().iteration() == message.checkpoint().iteration();
    });
  }
  // Repeated before each attempt of an upload, and one is enough.
  if (message.has_model()) withdraw([](const v1::NodeMessage& m) { return m.has_model(); });
  events_.push_back({.after = end_iteration(), .message = message});
  if (events_.size() > kKeptEvents) {
    events_.pop_front();
    if (events_sent_ > 0) --events_sent_;
  }
  return true;
}

void ReportOutbox::withdraw(const std::function<bool(const v1::NodeMessage&)>& is_it) {
  for (std::size_t i = events_.size(); i-- > 0;) {
    if (!is_it(events_[i].message)) continue;
    events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(i));
    if (i < events_sent_) --events_sent_;
  }
}

std::optional<v1::NodeMessage> ReportOutbox::next(Nanoseconds now) {
  if (overrun()) return std::nullopt;
  while (events_sent_ < events_.size() && events_[events_sent_].after <= sent_) {
    const Event& event = events_[events_sent_++];
    if (!is_known(event.message, lacks_)) return event.message;
  }
  if (sent_ >= end_iteration()) return std::nullopt;
  const Told& told = iterations_[static_cast<std::size_t>(sent_ - oldest_)];
  const auto age = std::chrono::duration_cast<Milliseconds>(now - told.since);
  v1::NodeMessage message;
  v1::IterationReport& report = *message.mutable_iteration();
  report.set_epoch(epoch_->value());
  report.set_iteration(static_cast<std::uint64_t>(sent_));
  report.set_loss(told.loss);
  report.set_age_ms(static_cast<std::uint64_t>(std::max(age.count(), Milliseconds::rep{0})));
  ++sent_;
  return message;
}

v1::Resume ReportOutbox::resume() const {
  POSEIDON_CHECK(epoch_.has_value(), "there is something to resume");
  v1::Resume resume;
  resume.set_epoch(epoch_->value());
  resume.set_index(index_);
  resume.set_oldest_iteration(static_cast<std::uint64_t>(oldest_));
  resume.set_next_iteration(static_cast<std::uint64_t>(end_iteration()));
  return resume;
}

void ReportOutbox::rewind(const v1::Resumed& lacks) {
  const std::uint64_t wanted =
      std::min(lacks.next_iteration(), static_cast<std::uint64_t>(end_iteration()));
  sent_ = std::max(oldest_, static_cast<Iteration>(wanted));
  events_sent_ = 0;
  lacks_ = lacks;
}

}  // namespace poseidon
