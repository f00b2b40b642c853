#pragma once

// The job's optimizer.layers -> multipliers of every tensor. Pure.
// Before: the job and the network are known. After: planner.h puts them into the plan.

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/tensor/optimizer.h"
#include "coordinator/planning/planner.h"

namespace poseidon {

/// Gives each tensor the multipliers of the first rule that matches its "<layer>.<tensor>".
/// INVALID_ARGUMENT for a rule that matches nothing: it would be a typing error that nobody sees.
absl::Status apply_tensor_rules(const std::vector<TensorRule>& rules,
                                std::vector<PlannerLayer>& layers);

/// Whether `pattern` describes all of `text`: "*" stands for any letters, "?" for any one.
bool matches_glob(std::string_view pattern, std::string_view text);

}  // namespace poseidon
