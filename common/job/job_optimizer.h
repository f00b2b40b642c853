#pragma once

// The "optimizer" object of a job file. Pure.
//
// Called by: common/job/job.h, which reads the rest of the file. Calls: common/files/json_fields.h,
// common/tensor/optimizer.h.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "common/tensor/optimizer.h"
#include "nlohmann/json_fwd.hpp"

namespace poseidon {

inline constexpr std::int64_t kMaxIterations = 1'000'000'000'000;  ///< of a job

/// `source` as in JsonFields. `iterations` of the job: the end of schedules that state none.
absl::Status parse_optimizer(const nlohmann::json& json, std::string_view source,
                             std::int64_t iterations, OptimizerSpec& spec);

/// The inverse.
nlohmann::json optimizer_to_json(const OptimizerSpec& spec);

}  // namespace poseidon
