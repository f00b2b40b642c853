#pragma once

// The output of `poseidon doctor`, as text for people and as JSON for scripts. Pure.

#include <string>
#include <vector>

#include "cli/doctor/doctor_diagnose.h"
#include "nlohmann/json.hpp"

namespace poseidon {

/// Several lines, the last one ended.
std::string doctor_to_text(const DoctorFacts& facts, const std::vector<Finding>& findings);
nlohmann::json doctor_to_json(const DoctorFacts& facts, const std::vector<Finding>& findings);

}  // namespace poseidon
