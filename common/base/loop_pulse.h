#pragma once

// Whether a daemon still lives: its own loop says so with every turn, and whoever asks is told how
// long it has been silent. Who asks: systemd's watchdog (common/daemon/service_manager.h) and
// /healthz (common/pages/metrics_server.h).

#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace poseidon {

/// Half of the units' WatchdogSec: /healthz and systemd's watchdog say the same. A loop that lives
/// turns at least once a second, whether it has anything to do or not.
inline constexpr Nanoseconds kLoopPatience = std::chrono::seconds(30);

/// When a loop turned last. Any thread. Times are of the machine's monotonic clock.
class LoopPulse {
 public:
  /// `loop`: what it is called, "heartbeats". Counts as having turned at `now`.
  LoopPulse(std::string loop, Nanoseconds now) : loop_(std::move(loop)), turned_at_(now) {}

  void turn(Nanoseconds now) { turned_at_.store(now, std::memory_order_relaxed); }

  /// UNAVAILABLE, naming the loop and for how long, when it has not turned for `patience` or
  /// longer.
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
