#pragma once

// The final message about a job, and the warnings before it.
//
// Called by: cli/commands and cli/local/local.cc. Calls: cli/terminal/watch.h.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/remote/coordinator_client.h"
#include "common/base/clock.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// "trained digits: 500 iterations in 0:21 (...)" and where things are; for a status "done". Pure.
std::string outcome_text(const v1::GetStatusResponse& status);

/// Prints outcome_text for a job that is done; ABORTED with the coordinator's reason for one that
/// failed.
absl::Status report_outcome(const v1::GetStatusResponse& status);

struct FollowOptions {
  bool wait = false;  ///< until the job's end; the command's exit code is the job's outcome
  /// How long the coordinator may be silent meanwhile; by default as long as nodes continue without
  /// it.
  Milliseconds coordinator_away = std::chrono::hours(1);
};
/// Prints that the job is accepted. Follows it if `options` say so, otherwise prints how to.
absl::Status follow_job(CoordinatorClient& client, const v1::SubmitResponse& accepted,
                        const FollowOptions& options);

/// One line each to stderr.
void print_warnings(const std::vector<std::string>& warnings);

}  // namespace poseidon
