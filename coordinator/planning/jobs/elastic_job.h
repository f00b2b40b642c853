#pragma once

// Adapts a job to another number of workers than it began with. Pure.
//
// membership.batch "per_worker" (the default): each worker's batch K stays, the batch of all grows
// and shrinks with them, and the learning rate in proportion (Goyal et al. 2017, "Accurate, large
// minibatch SGD", section 2.1, linear scaling), that of every iteration: a schedule's minimum too.
// "global": the batch of all stays, each worker's is its share, and the learning rate stays;
// numbers of workers that do not divide it are not used. Both rewrite the job file exactly: a run
// started with the new file would make the same steps.
//
// Called by: coordinator/job/preparation.h, with the number of workers; the nodes get the new text.
// Calls: common/job/job.h.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace poseidon {

struct ElasticJob {
  std::string job_json;
  std::int64_t batch_size = 0;        ///< per worker
  double learning_rate_factor = 1.0;  ///< of the rate in the job file
};

/// INVALID_ARGUMENT when the job does not allow this number.
absl::StatusOr<ElasticJob> job_with_workers(const std::string& job_json, std::uint32_t begun_with,
                                            std::uint32_t workers);

}  // namespace poseidon
