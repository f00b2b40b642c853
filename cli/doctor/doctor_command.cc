#include "cli/doctor/doctor_command.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/doctor/doctor_diagnose.h"
#include "cli/doctor/doctor_facts.h"
#include "cli/doctor/doctor_format.h"
#include "cli/doctor/doctor_metrics.h"
#include "cli/remote/coordinator_client.h"
#include "cli/remote/metrics_client.h"
#include "cli/remote/metrics_page.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"
#include "common/base/process_load.h"
#include "common/daemon/daemon.h"

namespace poseidon {
namespace {

/// What is looked at unless the operator says otherwise: this long, within these numbers.
constexpr double kLookSeconds = 3.0;
constexpr double kFewestIterations = 4, kMostIterations = 300;
/// Where no more fit into the nodes' buffers; less tells nothing.
constexpr double kFewestIterationsThatFit = 2;
/// A slow job's iterations may take long; then what there is is looked at. The longest is what a
/// coordinator waits.
constexpr double kPatienceSeconds = 60, kLongestPatienceSeconds = 600;
/// A trace begins with the iteration after the next, and the last one has to end.
constexpr double kIterationsAround = 3;
constexpr Milliseconds kStatusOfLookTimeout{5000};
/// For the metrics of all daemons; those that do not answer are left out.
constexpr Milliseconds kMetricsTimeout{5000};

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

/// The pages of those that can be asked, in the order of the targets.
std::vector<absl::StatusOr<MetricsPage>> read_metrics(const std::vector<MetricsTarget>& targets,
                                                      const SecurityOptions& security) {
  std::vector<absl::StatusOr<MetricsPage>> pages(targets.size(),
                                                 absl::UnavailableError("it was not asked"));
  std::vector<std::string> addresses;
  std::vector<std::size_t> asked;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (targets[t].address.empty()) continue;
    addresses.push_back(targets[t].address);
    asked.push_back(t);
  }
  fetch_metrics(addresses, security, kMetricsTimeout,
                [&](std::size_t index, absl::StatusOr<std::string> text) {
                  auto& page = pages[asked[index]];
                  page = text.ok() ? MetricsPage::parse(*text, doctor_metrics()) : text.status();
                });
  return pages;
}

/// Whether the address is one of this machine's: what is near is reached from itself.
bool is_here(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = parse_host_port(address, PortZero::kRefused);
  return parsed.ok() &&
         (is_loopback_host(parsed->host) || local_host_towards(*parsed) == parsed->host);
}

std::vector<MetricsReading> readings(std::vector<absl::StatusOr<MetricsPage>> before,
                                     std::vector<absl::StatusOr<MetricsPage>> after) {
  std::vector<MetricsReading> both;
  both.reserve(before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    both.push_back({.before = std::move(before[i]), .after = std::move(after[i])});
  }
  return both;
}

}  // namespace

absl::Status run_doctor(const DoctorOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                            CoordinatorClient::make(options));
  POSEIDON_ASSIGN_OR_RETURN(v1::GetStatusResponse status,
                            client->wait_for_coordinator(options.connect_timeout));
  const std::vector<MetricsTarget> targets = metrics_targets(
      status, {.machine = process_load().machine, .is_coordinators = is_here(client->address())});
  std::vector<absl::StatusOr<MetricsPage>> before = read_metrics(targets, options.security);
  const std::uint32_t iterations = iterations_of(options, status);
  POSEIDON_ASSIGN_OR_RETURN(const TraceData trace,
                            client->trace(iterations, patience(iterations, status)));
  // After it: the same seconds.
  POSEIDON_ASSIGN_OR_RETURN(status, client->get_status(kStatusOfLookTimeout));
  DoctorFacts facts = make_facts(trace, status);
  add_metrics(targets, readings(std::move(before), read_metrics(targets, options.security)), status,
              absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()), facts);
  const std::vector<Finding> findings = diagnose(facts);
  write_stdout(options.json ? doctor_to_json(facts, findings).dump(2) + "\n"
                            : doctor_to_text(facts, findings));
  return absl::OkStatus();
}

}  // namespace poseidon
