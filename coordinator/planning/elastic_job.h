#pragma once

// What becomes of a job when it goes on with another number of workers than it began with. Pure.
//
// membership.batch "per_worker" (the default): each worker's batch K stays, the batch of all grows
// and shrinks with them, and the learning rate in proportion (Goyal et al. 2017, "Accurate, large
// minibatch SGD", section 2.1, linear scaling), that of every iteration: a schedule's minimum too.
// "global": the batch of all stays, each worker's is
// its share, and the learning rate stays; numbers of workers that do not divide it are not used.
// Both are exact restatements of the job file: a run that began so would do the same steps.
//
// Before: coordinator/job/job_run.h knows how many workers there are. After: the nodes get the
// text.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace poseidon {

struct ElasticJob {
  std::string job_json;
  std::int64_t batch_size = 0;        ///< per worker
  double learning_rate_factor = 1.0;  ///< of the rate in the job file
};

/// INVALID_ARGUMENT when the job cannot be worked by so many.
absl::StatusOr<ElasticJob> job_with_workers(const std::string& job_json, std::uint32_t begun_with,
                                            std::uint32_t workers);

}  // namespace poseidon
