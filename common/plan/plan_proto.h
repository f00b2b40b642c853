#pragma once

// Converts a Plan to its message and back.
//
// Called by: the coordinator when it assigns a job, and the node that receives the Assignment.
// Calls: common/plan/plan.h.

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// `plan` must be valid (validate() in plan.h).
v1::PlanMessage plan_to_message(const Plan& plan);

/// Checks everything: the result has passed validate(). INVALID_ARGUMENT says what is wrong.
absl::StatusOr<Plan> plan_from_message(const v1::PlanMessage& message);

enum class AssignedRole : std::uint8_t { kWorker, kServer };

/// Of the node that is assigned: the plan with this node's proofs, and the index is one of the
/// plan's. Errors: INVALID_ARGUMENT, also where a proof is missing, as then anybody could send as a
/// worker.
absl::StatusOr<Plan> plan_from_assignment(const v1::Assignment& assignment, AssignedRole role);

}  // namespace poseidon
