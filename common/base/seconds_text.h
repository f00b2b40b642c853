#pragma once

// Prints a time for people, in a suitable unit. Pure.
//
// Called by: cli and coordinator/planning. Calls: nothing.

#include <string>

#include "absl/strings/str_format.h"

namespace poseidon {

/// For people: "412 us", "3.07 ms", "1.294 s"; "-" for zero and below.
inline std::string seconds_text(double seconds) {
  if (!(seconds > 0.0)) return "-";
  if (seconds < 0.9995e-3) return absl::StrFormat("%.3g us", seconds * 1e6);
  if (seconds < 0.9995) return absl::StrFormat("%.3g ms", seconds * 1e3);
  return absl::StrFormat("%.4g s", seconds);
}

}  // namespace poseidon
