#pragma once

// Prints quantities for people with a suitable prefix. Pure.
//
// Called by: cli and coordinator/planning/planner.h. Calls: nothing.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"

namespace poseidon {

/// "0 B", "12.3 kB", "117 MB/s": powers of 1000, three significant digits. `value` >= 0.
inline std::string scaled_text(double value, std::string_view unit) {
  static constexpr std::array kPrefixes = {"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  // 999.5 would print as "1e+03", so the next prefix begins where rounding reaches it.
  while (value >= 999.5 && prefix + 1 < kPrefixes.size()) {
    value /= 1000.0;
    ++prefix;
  }
  return absl::StrFormat("%.3g %s%s", value, kPrefixes.at(prefix), unit);
}

inline std::string bytes_text(double bytes) { return scaled_text(bytes, "B"); }

}  // namespace poseidon
