#pragma once

// A bounded list of the newest events of a cluster, for people. Pure.
//
// Called by: Cluster, which adds events, and the status page. Calls: nothing.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace poseidon {

enum class EventKind : std::uint8_t { kJoin, kLeave, kLoss, kJob, kRecovery, kCheckpoint, kAlarm };
/// "join", "leave", "loss", "job", "recovery", "checkpoint", "alarm".
const char* event_kind_name(EventKind kind);

struct Event {
  std::uint64_t number = 0;  ///< since this coordinator started, from 1
  std::int64_t time_unix_ms = 0;
  EventKind kind = EventKind::kJob;
  std::string text;  ///< one line
};

class EventList {
 public:
  static constexpr std::size_t kMaxEvents = 256;  ///< older ones are dropped
  /// Limit for kCheckpoint, so that frequent events do not displace rare ones.
  static constexpr std::size_t kMaxCheckpoints = 8;
  static constexpr std::size_t kMaxTextBytes = 500;

  /// A longer text is cut.
  void add(EventKind kind, std::string_view text, std::int64_t time_unix_ms);
  const std::deque<Event>& all() const { return events_; }  ///< the oldest first

 private:
  std::uint64_t count_ = 0;
  std::size_t checkpoints_ = 0;  ///< among events_
  std::deque<Event> events_;
};

}  // namespace poseidon
