#pragma once

// The doctor's facts out of metrics: whom to ask, and what a daemon's page says that neither trace
// nor status do. Each page is read twice, before the trace and after it, so that counters tell of
// the same seconds. Pure; cli/remote/metrics_client.h fetches.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/doctor/doctor_facts.h"
#include "cli/remote/metrics_page.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// A daemon of the job.
struct MetricsTarget {
  DoctorFacts::Daemon::Role role = DoctorFacts::Daemon::Role::kCoordinator;
  std::int32_t rank = 0;  ///< of the worker, or index of the server
  std::string name;       ///< "server 0 (10.0.0.3:4711)"
  std::string address;    ///< HOST:PORT of its page, "" where it cannot be asked
  std::string why_not;    ///< then
};

/// From where the doctor looks.
struct DoctorPlace {
  std::uint64_t machine = 0;     ///< as in ProcessLoad
  bool is_coordinators = false;  ///< the coordinator's address is one of this machine's
};

/// The coordinator and all nodes with a part in the job. A page on a loopback address is reached
/// from its own machine alone: others are not asked.
std::vector<MetricsTarget> metrics_targets(const v1::GetStatusResponse& status,
                                           const DoctorPlace& here);

/// The names of the metrics that add_metrics reads, for MetricsPage::parse.
absl::Span<const std::string_view> doctor_metrics();

/// Both readings of a target's page, or why there is none.
struct MetricsReading {
  absl::StatusOr<MetricsPage> before, after;
};

/// One reading for each target. Notes say whose metrics are missing and why; a page of another
/// daemon than the target (one of another cluster at that address) counts as missing. `unix_now_s`
/// is of the second reading.
void add_metrics(const std::vector<MetricsTarget>& targets,
                 const std::vector<MetricsReading>& readings, const v1::GetStatusResponse& status,
                 double unix_now_s, DoctorFacts& facts);

}  // namespace poseidon
