#pragma once

// Decides when to connect again after a cut, and when to give up. Pure; one per connection, on the
// loop.
//
// Called by: sync/links/chunk_links.h and sync/client/factor_exchange.h, when a stream opens, works
// or breaks. Calls: nothing. The caller waits for the pause, or fails the run.

#include <algorithm>

#include "sync/links/sync_events.h"

namespace poseidon {

/// An outage begins when the stream breaks or, when there was no stream yet, with the first
/// attempt: the seconds until a connection attempt fails count too.
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
  /// The other side answers and takes part.
  void in_order() {
    cut_since_ = kInOrder;
    pause_ = Nanoseconds{0};
  }

  /// The other side answers, but does not take part yet: keep trying, with growing pauses.
  void alive() { cut_since_ = kInOrder; }
  /// A message was written on this stream. The answer may take long: under BSP the other side may
  /// have no answer until the slowest worker has sent its part.
  void written(Nanoseconds now) {
    if (written_since_ == kNever) written_since_ = now;
  }

  struct Decision {
    bool give_up = false;
    Nanoseconds silent{0};  ///< time since the connection last worked
    Nanoseconds pause{0};   ///< before the next attempt
  };
  /// `refused`: the other side closed it with a reason.
  Decision cut(Nanoseconds now, bool refused = false) {
    // A stream that held that long has ended the outage before it. A refused one counts too when no
    // stream was cut before it.
    const bool held = written_since_ != kNever && now - written_since_ >= kHeld;
    if (held && (!refused || !was_cut_)) in_order();
    written_since_ = kNever;
    attempt(now);  // the next attempt
    was_cut_ = true;
    pause_ = std::clamp(pause_ * 2, min_, max_);
    const Nanoseconds silent = now - cut_since_;
    return {silent >= give_up_, silent, pause_};
  }

 private:
  static constexpr Nanoseconds kInOrder{-1}, kNever{-1};
  /// Longer than a keepalive needs to detect a dead path (grpc_transport.h: its interval and
  /// timeout, 20 s). On a path that passes small messages and loses large ones, each stream lasts
  /// that long; it must not end the outage.
  static constexpr Nanoseconds kHeld{std::chrono::seconds(25)};
  Nanoseconds min_, max_, give_up_;
  Nanoseconds pause_{0};
  Nanoseconds cut_since_ = kInOrder;
  bool was_cut_ = false;                ///< since cut_since_, a stream was cut (not only attempted)
  Nanoseconds written_since_ = kNever;  ///< when the stream's first message was written
};

}  // namespace poseidon
