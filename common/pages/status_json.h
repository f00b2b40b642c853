#pragma once

// A cluster's status as JSON, for scripts (`poseidon status --json`, `poseidon top --json`) and for
// the coordinator's status page. Pure.

#include "nlohmann/json_fwd.hpp"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// What is not measured yet is null. status_json.cc has the fields.
nlohmann::json status_to_json(const v1::GetStatusResponse& status);

}  // namespace poseidon
