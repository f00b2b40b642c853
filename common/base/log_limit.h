#pragma once

// Limits the rate of similar log lines: a fault that repeats a thousand times a second must not
// fill the disk or hide other messages. Pure.
//
// Called by: common/daemon/log.h. Calls: nothing.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/base/clock.h"

namespace poseidon {

struct LogLimitOptions {
  std::uint32_t burst = 50;  ///< similar lines that pass at once
  /// After the burst, one line passes per interval.
  Nanoseconds interval = std::chrono::seconds(1);
  std::size_t max_kinds = 256;  ///< kinds of lines that are counted separately
};

/// Whether the `n`th refusal (from 1) for one reason is logged: the first ten, then the 16th, 32nd
/// and so on.
constexpr bool is_logged_refusal(std::uint64_t n) { return n <= 10 || (n & (n - 1)) == 0; }

/// Lines are similar when they differ only in digits, in quoted text and in the later part of the
/// line.
class LogLimit {
 public:
  explicit LogLimit(LogLimitOptions options = {}) : options_(options) {}

  /// nullopt: drop the line. Otherwise the number of similar lines dropped before it.
  std::optional<std::uint64_t> admit(std::string_view line, Nanoseconds now);

 private:
  struct Kind {
    double tokens = 0.0;  ///< lines that may pass now
    Nanoseconds refilled{0};
    std::uint64_t left_out = 0;
  };
  double tokens_at(const Kind& kind, Nanoseconds now) const;
  Kind& kind_of(std::string key, Nanoseconds now);

  LogLimitOptions options_;
  std::unordered_map<std::string, Kind> kinds_;
};

}  // namespace poseidon
