#pragma once

// When to connect again after a cut, and when to give up. Pure; one per connection, on the loop.
//
// Before: sync/links/chunk_links.h or sync/client/factor_exchange.h says what became of a stream.
// After: it waits for so long, or fails the run.

#include <algorithm>

#include "sync/links/sync_events.h"

namespace poseidon {

/// An outage begins when the stream was cut, or with the first attempt where there was none before:
/// it takes seconds to learn that a machine does not answer, and they count.
class Reconnect {
 public:
  explicit Reconnect(const SyncerOptions& options)
      : min_(options.reconnect_min), max_(options.reconnect_max), give_up_(options.give_up_after) {}

  /// An attempt begins.
  void attempt(Nanoseconds now) {
    if (cut_since_ != kInOrder) return;
    cut_since_ = now;
    was_cut_ = false;
  }
  /// The other side is there and takes part.
  void in_order() {
    cut_since_ = kInOrder;
    pause_ = Nanoseconds{0};
  }

  /// It is there, but does not take part yet: worth waiting for, with growing pauses.
  void alive() { cut_since_ = kInOrder; }
  /// A message has gone out on this stream. It need not be answered soon: under BSP the other side
  /// may have nothing to say until the slowest worker has sent its part.
  void written(Nanoseconds now) {
    if (written_since_ == kNever) written_since_ = now;
  }

  struct Decision {
    bool give_up = false;
    Nanoseconds silent{0};  ///< since it was last in order
    Nanoseconds pause{0};   ///< before the next attempt
  };
  /// `refused`: by the other side, in words.
  Decision cut(Nanoseconds now, bool refused = false) {
    // A stream that held that long ended the outage before; and though it is refused now, there was
    // none where it is the first.
    const bool held = written_since_ != kNever && now - written_since_ >= kHeld;
    if (held && (!refused || !was_cut_)) in_order();
    written_since_ = kNever;
    attempt(now);  // the next one, which follows
    was_cut_ = true;
    pause_ = std::clamp(pause_ * 2, min_, max_);
    const Nanoseconds silent = now - cut_since_;
    return {silent >= give_up_, silent, pause_};
  }

 private:
  static constexpr Nanoseconds kInOrder{-1}, kNever{-1};
  /// Longer than it takes to find out that nothing gets through (grpc_transport.h: a keepalive's
  /// interval and timeout, 20 s). On a path that lets small messages through and loses large ones,
  /// each stream lasts as long as that, and none ends the outage.
  static constexpr Nanoseconds kHeld{std::chrono::seconds(25)};
  Nanoseconds min_, max_, give_up_;
  Nanoseconds pause_{0};
  Nanoseconds cut_since_ = kInOrder;
  bool was_cut_ = false;                ///< since then; not only attempted
  Nanoseconds written_since_ = kNever;  ///< the stream's first message
};

}  // namespace poseidon
