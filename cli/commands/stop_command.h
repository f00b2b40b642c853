#pragma once

// `poseidon stop`: saves a checkpoint and ends the cluster's job. The cluster stays ready for the
// next job.
//
// Called by: cli/main.cc. Calls: cli/remote/coordinator_client.h, cli/terminal/watch.h.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/remote/coordinator_client.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

struct StopOptions : CoordinatorAccess {
  std::string job;                         ///< id that must be the active one; "": whichever is
  std::int64_t checkpoint_within_s = 600;  ///< 0: no checkpoint
};
absl::Status run_stop(const StopOptions& options);

/// The message about the end of a job, from the coordinator's answer. ABORTED when the trained
/// state should have been saved (`is_to_be_saved`) and was not. Pure.
absl::StatusOr<std::string> stop_outcome(const v1::EndJobResponse& asked, bool is_to_be_saved,
                                         const v1::GetStatusResponse& end);

}  // namespace poseidon
