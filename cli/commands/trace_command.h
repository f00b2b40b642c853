#pragma once

// `poseidon trace`: writes what every node did in a few iterations to a file for Perfetto.
//
// Called by: cli/main.cc. Calls: cli/remote/coordinator_client.h, trace_json.h.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cli/remote/coordinator_client.h"

namespace poseidon {

struct TraceOptions : CoordinatorAccess {
  std::string to;  ///< file to write; it appears whole or not at all
  std::int64_t iterations = 10;
  std::int64_t timeout_s = 60;  ///< for the iterations; then the trace is partial
};
absl::Status run_trace(const TraceOptions& options);

}  // namespace poseidon
