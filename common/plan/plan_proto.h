#pragma once

// Plan <-> its message. Before: the coordinator's planner. After: the node that received
// Assignment.

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// `plan` must be valid (validate() in plan.h).
v1::PlanMessage plan_to_message(const Plan& plan);

/// Trusts nothing: the result has passed validate(); INVALID_ARGUMENT says what is wrong.
absl::StatusOr<Plan> plan_from_message(const v1::PlanMessage& message);

}  // namespace poseidon
