#pragma once

// Reports whether a daemon's main loop still turns: the loop records each turn, and alive() says
// how long it has been silent.
//
// Called by: the daemon's loop, systemd's watchdog (common/daemon/service_manager.h) and /healthz
// (common/pages/metrics_server.h). Calls: nothing.

#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace poseidon {

/// Half of the units' WatchdogSec, so that /healthz and systemd's watchdog agree. A healthy loop
/// turns at least once a second, busy or idle.
inline constexpr Nanoseconds kLoopPatience = std::chrono::seconds(30);

/// Time of a loop's last turn. Thread-safe. Times come from the monotonic clock.
class LoopPulse {
 public:
  /// `loop` is its name, e.g. "heartbeats". Counts as having turned at `now`.
  LoopPulse(std::string loop, Nanoseconds now) : loop_(std::move(loop)), turned_at_(now) {}

  void turn(Nanoseconds now) { turned_at_.store(now, std::memory_order_relaxed); }

  /// UNAVAILABLE, naming the loop and the time, when it has not turned for `patience` or longer.
  absl::Status alive(Nanoseconds now, Nanoseconds patience) const {
    const Nanoseconds silent = now - turned_at_.load(std::memory_order_relaxed);
    if (silent < patience) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("the loop of ", loop_, " has been silent for ",
                     std::chrono::duration_cast<std::chrono::seconds>(silent).count(),
                     " s: restart this process (systemd's watchdog does)"));
  }

 private:
  const std::string loop_;
  std::atomic<Nanoseconds> turned_at_;
};

}  // namespace poseidon
