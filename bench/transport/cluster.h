#pragma once

// One run of one variant: starts its processes, makes them work, measures, ends them.

#include "absl/status/statusor.h"
#include "bench/transport/variant.h"
#include "bench/transport/workload.h"
#include "common/base/clock.h"

namespace poseidon::bench {

struct RunOptions {
  Shape shape;
  Iteration iterations = 5;           ///< measured; one more before them warms up
  Milliseconds step_timeout{300000};  ///< for each command to the processes
};

/// What the measured iterations took.
struct Sample {
  double seconds = 0.0;
  double worker_cpu_s = 0.0;  ///< user and system, over all workers
  double server_cpu_s = 0.0;
};

/// Errors name the process, its exit status and last message, or the command that timed out.
absl::StatusOr<Sample> run_once(const Variant& variant, const RunOptions& options);

}  // namespace poseidon::bench
