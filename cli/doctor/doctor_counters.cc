#include "cli/doctor/doctor_counters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

using Role = DoctorFacts::Daemon::Role;
using Refusals = google::protobuf::RepeatedPtrField<v1::RefusedCount>;
using Nodes = google::protobuf::RepeatedPtrField<v1::NodeStatus>;

/// Beside two heartbeats.
constexpr Milliseconds kReportPatience{5000};
/// A mean over fewer iterations says little: of the time before the look, and of the look.
constexpr double kTellingBefore = 20, kTellingNow = 3;
/// What happens in every healthy cluster when epochs change, and when a job ends.
constexpr std::array<std::string_view, 4> kHarmless = {"duplicate", "epoch", "stale_epoch", "late"};

/// What a counter grew by. A process that was started again counts from 0: nothing is said of the
/// earlier one.
double grown(std::uint64_t before, std::uint64_t after) {
  return after > before ? static_cast<double>(after - before) : 0.0;
}

std::map<std::string, double> grown_by_reason(const Refusals& before, const Refusals& after) {
  std::map<std::string, std::uint64_t> then;
  for (const v1::RefusedCount& count : before) then[count.reason()] = count.count();
  std::map<std::string, double> grew;
  for (const v1::RefusedCount& count : after) {
    const double more = grown(then[count.reason()], count.count());
    if (more > 0.0) grew.emplace(printable(count.reason()), more);
  }
  return grew;
}

std::map<std::string, double> troubling(std::map<std::string, double> refused_messages) {
  for (const std::string_view reason : kHarmless) refused_messages.erase(std::string(reason));
  return refused_messages;
}

template <typename Counters>
void set_certificate(const Counters& now, double unix_now_s, DoctorFacts::Daemon& daemon) {
  if (!now.has_certificate_expiry_unix_s()) return;
  daemon.certificate_left_s = static_cast<double>(now.certificate_expiry_unix_s()) - unix_now_s;
}

std::optional<double> per_iteration(double seconds, double iterations, double telling) {
  if (iterations < telling || !(seconds > 0.0) || !std::isfinite(seconds)) return std::nullopt;
  return seconds / iterations;
}

void set_compute(const v1::NodeCounters& before, const v1::NodeCounters& now,
                 DoctorFacts::Daemon& daemon) {
  // Both count from 0 in every epoch.
  if (before.has_epoch() != now.has_epoch() || before.epoch() != now.epoch()) return;
  daemon.compute_before_s = per_iteration(
      before.compute_seconds(), static_cast<double>(before.compute_iterations()), kTellingBefore);
  daemon.compute_now_s =
      per_iteration(now.compute_seconds() - before.compute_seconds(),
                    grown(before.compute_iterations(), now.compute_iterations()), kTellingNow);
}

DoctorFacts::Daemon node_facts(Role role, std::string name, const v1::CountersStatus& earlier,
                               const v1::CountersStatus& later, double unix_now_s) {
  const v1::NodeCounters& before = earlier.counters();
  const v1::NodeCounters& now = later.counters();
  DoctorFacts::Daemon daemon{.role = role, .name = std::move(name)};
  const auto broke = [&daemon](const char* peer, std::uint64_t then, std::uint64_t after) {
    if (const double more = grown(then, after); more > 0.0) daemon.broken_streams[peer] = more;
  };
  broke("server", before.retries_server(), now.retries_server());
  broke("worker", before.retries_worker(), now.retries_worker());
  broke("coordinator", before.retries_coordinator(), now.retries_coordinator());
  daemon.refused_messages =
      troubling(grown_by_reason(earlier.refused_messages(), later.refused_messages()));
  daemon.refused_connections =
      grown_by_reason(before.refused_connections(), now.refused_connections());
  daemon.shared_memory_bytes = grown(before.shared_memory_bytes(), now.shared_memory_bytes());
  daemon.socket_bytes = grown(before.socket_bytes(), now.socket_bytes());
  set_certificate(now, unix_now_s, daemon);
  if (role == Role::kWorker) {
    set_compute(before, now, daemon);
    if (now.has_gpu_utilization() && std::isfinite(now.gpu_utilization())) {
      daemon.gpu_utilization = now.gpu_utilization();
    }
    if (now.has_gpu_celsius() && std::isfinite(now.gpu_celsius())) {
      daemon.gpu_celsius = now.gpu_celsius();
    }
    return daemon;
  }
  daemon.streams = static_cast<double>(now.streams());
  // The smaller of the two figures, so that a short peak is not reported.
  daemon.paused_streams =
      static_cast<double>(std::min(before.paused_streams(), now.paused_streams()));
  daemon.early_gradient_bytes = static_cast<double>(now.early_gradient_bytes());
  daemon.store_errors = static_cast<double>(now.store_errors());
  if (now.has_disk_free_bytes()) {
    daemon.disk_free_bytes = static_cast<double>(now.disk_free_bytes());
  }
  if (now.has_disk_bytes()) daemon.disk_bytes = static_cast<double>(now.disk_bytes());
  daemon.snapshots_failed = grown(before.snapshots_failed(), now.snapshots_failed());
  return daemon;
}

DoctorFacts::Daemon coordinator_facts(const v1::GetStatusResponse& earlier,
                                      const v1::GetStatusResponse& later, double unix_now_s) {
  const v1::CoordinatorCounters& before = earlier.counters();
  const v1::CoordinatorCounters& now = later.counters();
  DoctorFacts::Daemon daemon{.role = Role::kCoordinator, .name = "coordinator"};
  daemon.refused_messages =
      troubling(grown_by_reason(before.refused_messages(), now.refused_messages()));
  daemon.refused_connections =
      grown_by_reason(before.refused_connections(), now.refused_connections());
  set_certificate(now, unix_now_s, daemon);
  // What is in the making when an epoch ends counts as failed, too.
  if (earlier.epoch() == later.epoch()) {
    daemon.checkpoints_failed = grown(before.checkpoints_failed(), now.checkpoints_failed());
  }
  daemon.checkpoint_every = static_cast<double>(now.checkpoint_every());
  if (before.checkpoint_iteration() == now.checkpoint_iteration()) {
    daemon.iterations_since_checkpoint =
        grown(now.checkpoint_iteration(), std::min(earlier.iteration(), later.iteration()));
  }
  return daemon;
}

const v1::NodeStatus* find_node(const Nodes& nodes, std::uint64_t node_id) {
  const auto found = std::find_if(nodes.begin(), nodes.end(), [node_id](const auto& node) {
    return node.node_id() == node_id;
  });
  return found == nodes.end() ? nullptr : &*found;
}

bool is_absent(const v1::NodeStatus& node) {
  return node.state() == "lost" || node.state() == "away";
}

bool have_reported(const Nodes& nodes, const Nodes& since) {
  return std::all_of(nodes.begin(), nodes.end(), [&since](const v1::NodeStatus& node) {
    if (node.rank() < 0 || is_absent(node)) return true;
    const v1::NodeStatus* then = find_node(since, node.node_id());
    return node.counters().reports() > (then == nullptr ? 0 : then->counters().reports());
  });
}

/// Why nothing can be said of the node's counters; "" where something can. `then` may be null.
std::string why_missing(const v1::NodeStatus* then, const v1::NodeStatus& node,
                        const v1::GetStatusResponse& after) {
  if (then == nullptr) return "it joined during the look";
  const bool is_new = node.counters().reports() > then->counters().reports();
  if (!is_new && is_absent(node)) return absl::StrCat("it is ", node.state());
  if (!then->has_counters() || !is_new) {
    return absl::StrFormat("no report of it came within %g s", seconds(report_patience(after)));
  }
  const v1::NodeCounters& now = node.counters().counters();
  if (now.has_epoch() && now.epoch() == after.epoch()) return "";
  return absl::StrCat("it is in ",
                      now.has_epoch() ? absl::StrCat("epoch ", now.epoch()) : "no epoch",
                      ", the job is in ", after.epoch());
}

std::string name_of(const char* role, const v1::NodeStatus& node) {
  std::string name = absl::StrCat(role, " ", node.rank());
  if (!node.address().empty()) absl::StrAppend(&name, " (", node.address(), ")");
  return name;
}

}  // namespace

bool all_have_reported(const v1::GetStatusResponse& status, const v1::GetStatusResponse& since) {
  return have_reported(status.servers(), since.servers()) &&
         have_reported(status.workers(), since.workers());
}

Milliseconds report_patience(const v1::GetStatusResponse& status) {
  return kReportPatience + 2 * Milliseconds(status.counters().heartbeat_ms());
}

void add_counters(const v1::GetStatusResponse& before, const v1::GetStatusResponse& after,
                  double unix_now_s, DoctorFacts& facts) {
  // Who shares a reason shares a note.
  std::map<std::string, std::vector<std::string>> missing;
  double servers = 0.0;
  if (before.has_counters() && after.has_counters() && before.job_id() == after.job_id()) {
    facts.daemons.push_back(coordinator_facts(before, after, unix_now_s));
  } else {
    missing[before.job_id() != after.job_id() ? "another job began during the look"
                                              : "it is of a version that tells none"]
        .push_back("coordinator");
  }
  const auto add = [&](Role role, const char* role_name, const Nodes& earlier, const Nodes& later) {
    for (const v1::NodeStatus& node : later) {
      if (node.rank() < 0) continue;
      if (role == Role::kServer) servers += 1.0;
      const v1::NodeStatus* then = find_node(earlier, node.node_id());
      const std::string why = why_missing(then, node, after);
      if (!why.empty()) {
        missing[why].push_back(name_of(role_name, node));
        continue;
      }
      facts.daemons.push_back(node_facts(role, name_of(role_name, node), then->counters(),
                                         node.counters(), unix_now_s));
    }
  };
  add(Role::kServer, "server", before.servers(), after.servers());
  add(Role::kWorker, "worker", before.workers(), after.workers());
  // Servers count since they were started, other jobs included; the coordinator knows this job's.
  for (DoctorFacts::Daemon& daemon : facts.daemons) {
    if (daemon.role != Role::kServer) continue;
    daemon.snapshot_bytes = static_cast<double>(after.counters().checkpoint_bytes()) / servers;
  }
  for (const auto& [why, names] : missing) {
    facts.notes.push_back(absl::StrCat("no counters of ", absl::StrJoin(names, ", "), ": ", why));
  }
}

}  // namespace poseidon
