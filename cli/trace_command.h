#pragma once

// `poseidon trace`: what every node did in a few iterations, as a file for Perfetto.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/clock.h"

namespace poseidon {

struct TraceOptions {
  std::string coordinator;
  std::string to;  ///< file to write; it appears whole or not at all
  std::int64_t iterations = 10;
  std::int64_t timeout_s = 60;  ///< for the iterations; then what there is
  Milliseconds connect_timeout{10000};
};
absl::Status run_trace(const TraceOptions& options);

}  // namespace poseidon
