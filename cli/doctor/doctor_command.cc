#include "cli/doctor/doctor_command.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/doctor/doctor_counters.h"
#include "cli/doctor/doctor_diagnose.h"
#include "cli/doctor/doctor_facts.h"
#include "cli/doctor/doctor_format.h"
#include "cli/doctor/doctor_not_training.h"
#include "cli/remote/coordinator_client.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

/// The default length of the trace: this time, within these numbers of iterations.
constexpr double kLookSeconds = 3.0;
constexpr double kFewestIterations = 4, kMostIterations = 300;
/// When no more fit into the nodes' buffers; fewer show nothing.
constexpr double kFewestIterationsThatFit = 2;
/// A slow job's iterations may take long; then a partial trace is examined. The longest time that a
/// coordinator waits.
constexpr double kPatienceSeconds = 60, kLongestPatienceSeconds = 600;
/// A trace begins with the iteration after the next, and the last one has to end.
constexpr double kIterationsAround = 3;
constexpr Milliseconds kStatusOfLookTimeout{5000};
/// Interval of checks whether all nodes have reported.
constexpr Milliseconds kStatusPause{100};

std::uint32_t iterations_of(const DoctorOptions& options, const v1::GetStatusResponse& status) {
  if (options.iterations > 0) return static_cast<std::uint32_t>(options.iterations);
  const double iteration_s = status.measured_iteration_seconds();
  const bool is_known = std::isfinite(iteration_s) && iteration_s > 0.0;
  const double wanted = is_known ? std::ceil(kLookSeconds / iteration_s) : kFewestIterations;
  const double most = std::min(kMostIterations, static_cast<double>(iterations_that_fit(status)));
  return static_cast<std::uint32_t>(
      std::max(std::min(std::max(wanted, kFewestIterations), most), kFewestIterationsThatFit));
}

Milliseconds patience(std::uint32_t iterations, const v1::GetStatusResponse& status) {
  const double iteration_s = status.measured_iteration_seconds();
  const double wanted =
      std::isfinite(iteration_s) ? (iterations + kIterationsAround) * iteration_s : 0.0;
  return Milliseconds(static_cast<std::int64_t>(
      1000 * std::clamp(wanted, kPatienceSeconds, kLongestPatienceSeconds)));
}

/// The newest status in which every node has sent counters that `since` does not have yet; after
/// report_patience one in which some have not.
absl::StatusOr<v1::GetStatusResponse> await_reports(CoordinatorClient& client,
                                                    const v1::GetStatusResponse& since) {
  const auto deadline = std::chrono::steady_clock::now() + report_patience(since);
  while (true) {
    POSEIDON_ASSIGN_OR_RETURN(v1::GetStatusResponse status,
                              client.get_status(kStatusOfLookTimeout));
    if (all_have_reported(status, since) || std::chrono::steady_clock::now() >= deadline) {
      return status;
    }
    std::this_thread::sleep_for(kStatusPause);
  }
}

void tell(const DoctorOptions& options, const DoctorFacts& facts,
          const std::vector<Finding>& findings) {
  write_stdout(options.json ? doctor_to_json(facts, findings).dump(2) + "\n"
                            : doctor_to_text(facts, findings));
}

}  // namespace

absl::Status run_doctor(const DoctorOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                            CoordinatorClient::make(options));
  POSEIDON_ASSIGN_OR_RETURN(v1::GetStatusResponse status,
                            client->wait_for_coordinator(options.connect_timeout));
  if (is_before_training(status)) {
    tell(options, DoctorFacts(), {not_training(status)});
    return absl::OkStatus();
  }
  // A node that has just joined has not reported yet. Any report suffices: this status has none,
  // and gives their interval.
  v1::GetStatusResponse nobody_yet;
  *nobody_yet.mutable_counters() = status.counters();
  if (!all_have_reported(status, nobody_yet)) {
    POSEIDON_ASSIGN_OR_RETURN(status, await_reports(*client, nobody_yet));
  }
  const std::uint32_t iterations = iterations_of(options, status);
  const absl::StatusOr<TraceData> trace = client->trace(iterations, patience(iterations, status));
  // After the trace, so that both cover the same seconds.
  POSEIDON_ASSIGN_OR_RETURN(const v1::GetStatusResponse looked,
                            client->get_status(kStatusOfLookTimeout));
  DoctorFacts facts;
  if (trace.ok()) facts = make_facts(*trace, looked);
  // The job may have begun to recover meanwhile. Which nodes are silent is still worth a look.
  const bool recovers = facts.iterations == 0 && is_before_training(looked);
  if (!trace.ok() && !recovers) return trace.status();
  POSEIDON_ASSIGN_OR_RETURN(const v1::GetStatusResponse after, await_reports(*client, looked));
  add_counters(status, after, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()), facts);
  const std::vector<Finding> findings =
      recovers ? std::vector<Finding>{not_training(looked)} : diagnose(facts);
  tell(options, facts, findings);
  return absl::OkStatus();
}

}  // namespace poseidon
