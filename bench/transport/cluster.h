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
  Milliseconds step_timeout{300000};  ///< for each thing that the processes are told to do
};

/// What the measured iterations took.
struct Sample {
  double seconds = 0.0;
  double worker_cpu_s = 0.0;  ///< user and system, over all workers
  double server_cpu_s = 0.0;
};

/// Errors name the process: how it ended and its last words, or what it did not do in time.
absl::StatusOr<Sample> run_once(const Variant& variant, const RunOptions& options);

}  // namespace poseidon::bench
