#pragma once

// Computes the multipliers of every tensor from the job's optimizer.layers. Pure.
//
// Called by: job_resolver.cc and cli/commands/job_file.cc; planner.h writes the multipliers into
// the plan. Calls: nothing.

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/tensor/optimizer.h"
#include "coordinator/planning/planner.h"

namespace poseidon {

/// Gives each tensor the multipliers of the first rule that matches its "<layer>.<tensor>".
/// INVALID_ARGUMENT for a rule that matches nothing: it would be an unnoticed typing error.
absl::Status apply_tensor_rules(const std::vector<TensorRule>& rules,
                                std::vector<PlannerLayer>& layers);

/// Whether `pattern` describes all of `text`: "*" stands for any letters, "?" for any one.
bool matches_glob(std::string_view pattern, std::string_view text);

}  // namespace poseidon
