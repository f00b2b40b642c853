#include "cli/doctor_command.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/coordinator_client.h"
#include "cli/doctor_diagnose.h"
#include "cli/doctor_facts.h"
#include "cli/doctor_format.h"
#include "cli/watch.h"
#include "common/daemon.h"
#include "common/status_macros.h"

namespace poseidon {
namespace {

/// What is looked at unless the operator says otherwise: this long, within these numbers.
constexpr double kLookSeconds = 3.0;
constexpr double kFewestIterations = 4, kMostIterations = 300;
/// Where no more fit into the nodes' buffers; less tells nothing.
constexpr double kFewestIterationsThatFit = 2;
/// A slow job's iterations may take long; then what there is is looked at.
constexpr Milliseconds kPatience{60000};
constexpr Milliseconds kStatusOfLookTimeout{5000};

std::uint32_t iterations_of(const DoctorOptions& options, const v1::GetStatusResponse& status) {
  if (options.iterations > 0) return static_cast<std::uint32_t>(options.iterations);
  const double iteration_s = status.measured_iteration_seconds();
  const bool is_known = std::isfinite(iteration_s) && iteration_s > 0.0;
  const double wanted = is_known ? std::ceil(kLookSeconds / iteration_s) : kFewestIterations;
  const double most = std::min(kMostIterations, static_cast<double>(iterations_that_fit(status)));
  return static_cast<std::uint32_t>(
      std::max(std::min(std::max(wanted, kFewestIterations), most), kFewestIterationsThatFit));
}

}  // namespace

absl::Status run_doctor(const DoctorOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                            CoordinatorClient::make(options));
  POSEIDON_ASSIGN_OR_RETURN(v1::GetStatusResponse status,
                            client->wait_for_coordinator(options.connect_timeout));
  POSEIDON_ASSIGN_OR_RETURN(const TraceData trace,
                            client->trace(iterations_of(options, status), kPatience));
  // After it: the same seconds.
  POSEIDON_ASSIGN_OR_RETURN(status, client->get_status(kStatusOfLookTimeout));
  const DoctorFacts facts = make_facts(trace, status);
  const std::vector<Finding> findings = diagnose(facts);
  write_stdout(options.json ? doctor_to_json(facts, findings).dump(2) + "\n"
                            : doctor_to_text(facts, findings));
  return absl::OkStatus();
}

}  // namespace poseidon
