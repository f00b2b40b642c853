#pragma once

// Checks the numbers of nodes that a job allows. Pure.
//
// Called by: the command line, before it starts any process, and the coordinator, before it accepts
// a job. Calls: nothing.

#include <cstdint>

#include "absl/status/status.h"

namespace poseidon {

/// Of the job file.
struct NodeLimits {
  std::int64_t min_workers = 1;
  std::int64_t max_workers = 64;
  std::int64_t replicas = 1;  ///< checkpoint.replicas: no more than there are servers
};

/// INVALID_ARGUMENT, with the job's keys, for counts that it does not allow. 0: not known yet, so
/// not checked.
absl::Status check_node_counts(const NodeLimits& limits, std::int64_t workers,
                               std::int64_t servers);

}  // namespace poseidon
