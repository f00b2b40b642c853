#pragma once

// `poseidon doctor`: finds what limits the training job, and names remedies.

#include <cstdint>

#include "absl/status/status.h"
#include "cli/remote/coordinator_client.h"

namespace poseidon {

struct DoctorOptions : CoordinatorAccess {
  std::int64_t iterations = 0;  ///< to look at; 0: as many as take some seconds
  bool json = false;
};
absl::Status run_doctor(const DoctorOptions& options);

}  // namespace poseidon
