#pragma once

// `poseidon checkpoint list` as text and as JSON, and the outcome of a `save`. Pure.
//
// Called by: checkpoint_command.h. Calls: cli/terminal/status_format.h.

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// An array, oldest first; then the newest failed attempt and the one in progress, both with
/// committed false, a reason, and no time.
nlohmann::json checkpoints_to_json(const v1::ListCheckpointsResponse& list);

/// The same as a table.
std::string checkpoints_to_text(const v1::ListCheckpointsResponse& list);

/// The outcome of a requested checkpoint: its id (or that of a later one of its epoch, if it is
/// gone already), nullopt while it is pending, or ABORTED with the reason.
absl::StatusOr<std::optional<std::string>> save_outcome(const v1::RequestCheckpointResponse& asked,
                                                        const v1::ListCheckpointsResponse& list);

}  // namespace poseidon
