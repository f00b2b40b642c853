#pragma once

// Follows one job until its end and shows its progress.
//
// Called by: cli/commands, cli/doctor and cli/local/local.cc. Calls:
// cli/remote/coordinator_client.h, cli/terminal/progress.h.

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/remote/coordinator_client.h"
#include "cli/terminal/progress.h"
#include "common/base/clock.h"

namespace poseidon {

struct WatchOptions {
  Milliseconds poll_interval{250};
  /// How long the coordinator may be silent before the watch gives up. The silence is shown
  /// earlier.
  Milliseconds silence_limit{15000};
  /// Waits for this long, or less when something happened; an error ends the watch.
  std::function<absl::Status(Milliseconds)> pause;
  /// Shows text to the operator.
  std::function<void(const std::string&)> write;
};

/// Returns the job's last status: "done", or "stopped" or "failed" with the reason as message. An
/// error means that the end was not seen: `pause` failed, the coordinator fell silent (UNAVAILABLE)
/// or refused to answer (its code), or another job replaced this one (UNKNOWN).
absl::StatusOr<v1::GetStatusResponse> watch_job(CoordinatorClient& client,
                                                const std::string& job_id,
                                                ProgressOptions progress_options,
                                                const WatchOptions& options);

/// Progress options that suit the process's stdout.
ProgressOptions progress_options_of_stdout();

/// Writes to stdout and flushes, so that a pipe's reader sees each line when it happens.
void write_stdout(const std::string& text);

}  // namespace poseidon
