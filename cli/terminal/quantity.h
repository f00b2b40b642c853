#pragma once

// Parses speeds and times from the command line. Pure.
//
// Called by: cli/commands/commands.cc, for `poseidon plan`. Calls: nothing.

#include <string_view>

#include "absl/status/statusor.h"

namespace poseidon {

/// "10gbit", "200 Mbit/s", "1.25gbyte", "5e9bit" -> bytes per second; powers of 1000. A number
/// alone is refused: bits and bytes are too easily confused. `flag` starts the message of every
/// error.
absl::StatusOr<double> parse_bandwidth(std::string_view flag, std::string_view text);

/// "50us", "0.1 ms", "2s" -> seconds, at least 0.
absl::StatusOr<double> parse_latency(std::string_view flag, std::string_view text);

/// "6e12", "6T", "312 TFLOPS", "50gflop/s" -> operations per second.
absl::StatusOr<double> parse_operations(std::string_view flag, std::string_view text);

}  // namespace poseidon
