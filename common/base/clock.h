#pragma once

// Time, and the interface that tests replace.
//
// Called by: main(), which uses the machine's clock; tests and simulations use a ManualClock.
// Calls: nothing. Deciding code receives `now` as an argument; a Transport has its own clock
// (Loop::now).

#include <chrono>

namespace poseidon {

/// Milliseconds and nanoseconds are the only units of time between modules.
using Milliseconds = std::chrono::milliseconds;
using Nanoseconds = std::chrono::nanoseconds;

/// For rates and for messages.
inline double seconds(Nanoseconds time) { return std::chrono::duration<double>(time).count(); }

/// Seam for time. Deciding code never holds a Clock: it is handed `now`.
/// Thread-safe. `now` never goes backwards; its zero is arbitrary.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanoseconds now() const = 0;
  /// Since 1970, for files and messages that people or later processes read; may jump.
  virtual Milliseconds unix_time() const = 0;
};

/// The machine's monotonic clock.
class SystemClock final : public Clock {
 public:
  Nanoseconds now() const override {
    return std::chrono::duration_cast<Nanoseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
  }
  Milliseconds unix_time() const override {
    return std::chrono::duration_cast<Milliseconds>(
        std::chrono::system_clock::now().time_since_epoch());
  }
};

/// The in-memory twin: time moves only when a test says so. One thread only.
class ManualClock final : public Clock {
 public:
  Nanoseconds now() const override { return now_; }
  Milliseconds unix_time() const override { return std::chrono::duration_cast<Milliseconds>(now_); }
  void advance(Nanoseconds by) { now_ += by; }
  void set(Nanoseconds to) {
    if (to > now_) now_ = to;
  }

 private:
  Nanoseconds now_{0};
};

}  // namespace poseidon
