#pragma once

// The median of a few measured values. Pure.
//
// Called by: coordinator/job/reports/calibration_run.h, worker/measure_compute.h and cli/doctor.
// Calls: nothing.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace poseidon {

/// The middle value, or the mean of the two middle ones; 0 for no values.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace poseidon
