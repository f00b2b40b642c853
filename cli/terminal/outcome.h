#pragma once

// The final message about a job, and the warnings before it.
//
// Called by: cli/commands and cli/local/local.cc. Calls: cli/terminal/watch.h.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/remote/coordinator_client.h"
#include "common/base/clock.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// "trained digits: 500 iterations in 0:21 (...)" and where things are; for a status "done". Pure.
std::string outcome_text(const v1::GetStatusResponse& status);

/// After how many iterations and why, and where its files are; for a status "stopped". Pure.
std::string stopped_text(const v1::GetStatusResponse& status);

/// Exit code of a command that followed a job which somebody else ended.
inline constexpr int kExitStopped = 3;
/// CANCELLED with an exit code of its own. An empty message: nothing is printed.
absl::Status with_exit_code(int code, const std::string& message);
/// Of such a status.
std::optional<int> own_exit_code(const absl::Status& status);

/// Before the command that goes on with a job that was stopped.
inline constexpr const char* kGoOnWith = "go on with: ";
/// "poseidon checkpoint restore ..." from the job's newest checkpoint; "" where it has none, or the
/// coordinator does not answer.
std::string restore_command(CoordinatorClient& client, const std::string& job_id);

/// Prints outcome_text for a job that is done. For one that was stopped, prints stopped_text and,
/// as the last line, how to go on (`go_on`, a command; "" for none), and returns kExitStopped.
/// ABORTED with the coordinator's reason for one that failed.
absl::Status report_outcome(const v1::GetStatusResponse& status, const std::string& go_on);

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
