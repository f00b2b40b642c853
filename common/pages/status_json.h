#pragma once

// A cluster's status as JSON, for scripts (`poseidon status --json`, `poseidon top --json`) and for
// the coordinator's status page. Pure.
//
// Called by: cli and coordinator/watch. Calls: nothing.

#include "nlohmann/json_fwd.hpp"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Values not measured yet are null. status_json.cc has the fields.
nlohmann::json status_to_json(const v1::GetStatusResponse& status);

}  // namespace poseidon
