#include "coordinator/watch/event_list.h"

#include <algorithm>

#include "common/base/text.h"

namespace poseidon {

const char* event_kind_name(EventKind kind) {
  switch (kind) {
    case EventKind::kJoin:
      return "join";
    case EventKind::kLeave:
      return "leave";
    case EventKind::kLoss:
      return "loss";
    case EventKind::kJob:
      return "job";
    case EventKind::kRecovery:
      return "recovery";
    case EventKind::kCheckpoint:
      return "checkpoint";
    case EventKind::kAlarm:
      return "alarm";
  }
  return "unknown";
}

void EventList::add(EventKind kind, std::string_view text, std::int64_t time_unix_ms) {
  const auto is_checkpoint = [](const Event& event) {
    return event.kind == EventKind::kCheckpoint;
  };
  if (kind == EventKind::kCheckpoint && ++checkpoints_ > kMaxCheckpoints) {
    events_.erase(std::find_if(events_.begin(), events_.end(), is_checkpoint));
    --checkpoints_;
  } else if (events_.size() == kMaxEvents) {
    if (is_checkpoint(events_.front())) --checkpoints_;
    events_.pop_front();
  }
  Event& event = events_.emplace_back();
  event.number = ++count_;
  event.time_unix_ms = time_unix_ms;
  event.kind = kind;
  event.text = utf8_prefix(text, kMaxTextBytes);
  if (event.text.size() < text.size()) event.text += " ...";
}

}  // namespace poseidon
