#pragma once

// `poseidon doctor`: what limits the job that trains, and what to do.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/clock.h"

namespace poseidon {

struct DoctorOptions {
  std::string coordinator;
  std::int64_t iterations = 0;  ///< to look at; 0: as many as take some seconds
  bool json = false;
  Milliseconds connect_timeout{10000};
};
absl::Status run_doctor(const DoctorOptions& options);

}  // namespace poseidon
