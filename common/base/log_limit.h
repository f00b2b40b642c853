#pragma once

// Which log lines are one too many: a fault that repeats a thousand times a second must not fill
// the disk, nor hide everything else. Pure; common/daemon/log.h asks it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/base/clock.h"

namespace poseidon {

struct LogLimitOptions {
  std::uint32_t burst = 50;  ///< lines alike that pass at once
  /// Then one in so long.
  Nanoseconds interval = std::chrono::seconds(1);
  std::size_t max_kinds = 256;  ///< kinds of lines that are told apart
};

/// Of one reason to refuse messages: the first ten, then the 16th, 32nd and so on. `n`: the number
/// of this one, from 1.
constexpr bool is_logged_refusal(std::uint64_t n) { return n <= 10 || (n & (n - 1)) == 0; }

/// Lines are alike when they differ in nothing but digits, what stands in double quotes, and what
/// comes late in the line.
class LogLimit {
 public:
  explicit LogLimit(LogLimitOptions options = {}) : options_(options) {}

  /// Nothing: leave the line out. Else how many like it were left out before it.
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
