#pragma once

// The job of a program, as it is declared to the cluster. Pure.
//
// Called by: client/client.cc. Calls: common/job/job.h, models/net/model_layout.h.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "models/net/model_layout.h"

namespace poseidon {

struct ProgramJobText {
  std::string json;  ///< checked, with the schemes that programs can do
  ModelLayout layout;
  bool sums = false;         ///< the program steps by itself
  bool gives_rates = false;  ///< the program says the rates of each step
};

/// A job that does not say how many workers it may shrink to keeps `workers`: few programs can go
/// on with another rank. INVALID_ARGUMENT, for people: a job file's errors, a model that is not
/// declared, a job that demands factors or a given plan.
absl::StatusOr<ProgramJobText> parse_program_job(std::string_view text, std::int64_t workers);

}  // namespace poseidon
