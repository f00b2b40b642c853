#pragma once

// What may differ between the job of a checkpoint and the job that goes on from it. Pure.
//
// Called by: coordinator/cluster (a restore) and cli/local/run_there.h. Calls: common/job/job.h.

#include <string>

#include "absl/status/status.h"

namespace poseidon {

/// A job that goes on from a checkpoint of the job `from` may have other iterations, batch_size,
/// data, test_every_iterations, checkpoint, membership, optimizer.learning_rate and
/// optimizer.schedule. INVALID_ARGUMENT names the first other field that differs, with both values.
absl::Status check_job_change(const std::string& from_json, const std::string& to_json);

}  // namespace poseidon
