#include "cli/doctor/doctor_metrics.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "common/daemon/daemon.h"

namespace poseidon {
namespace {

using Role = DoctorFacts::Daemon::Role;

/// As add_metrics uses them.
constexpr std::string_view kBuildInfo = "poseidon_build_info", kRank = "poseidon_node_rank",
                           kNodeEpoch = "poseidon_node_epoch", kJobInfo = "poseidon_job_info",
                           kEpoch = "poseidon_epoch", kRetries = "poseidon_retries_total",
                           kRefusedMessages = "poseidon_refused_messages_total",
                           kRefusedConnections = "poseidon_refused_connections_total",
                           kExpiry = "poseidon_certificate_expiry_time_seconds",
                           kSent = "poseidon_transport_sent_bytes_total",
                           kForward = "poseidon_layer_forward_seconds_total",
                           kBackward = "poseidon_layer_backward_seconds_total",
                           kSynced = "poseidon_layer_sync_seconds_count",
                           kUtilization = "poseidon_gpu_utilization_ratio",
                           kCelsius = "poseidon_gpu_temperature_celsius",
                           kStreams = "poseidon_server_streams",
                           kPaused = "poseidon_server_paused_streams",
                           kEarly = "poseidon_server_early_gradient_bytes",
                           kStoreErrors = "poseidon_store_background_errors",
                           kDiskFree = "poseidon_disk_free_bytes", kDisk = "poseidon_disk_bytes",
                           kSnapshots = "poseidon_snapshots_total",
                           kCheckpointBytes = "poseidon_checkpoint_bytes",
                           kCheckpoints = "poseidon_checkpoints_total",
                           kCheckpointEvery = "poseidon_checkpoint_every_iterations",
                           kCheckpointIteration = "poseidon_checkpoint_iteration",
                           kIteration = "poseidon_job_iteration";
constexpr std::array kNames = {kBuildInfo,
                               kRank,
                               kNodeEpoch,
                               kJobInfo,
                               kEpoch,
                               kRetries,
                               kRefusedMessages,
                               kRefusedConnections,
                               kExpiry,
                               kSent,
                               kForward,
                               kBackward,
                               kSynced,
                               kUtilization,
                               kCelsius,
                               kStreams,
                               kPaused,
                               kEarly,
                               kStoreErrors,
                               kDiskFree,
                               kDisk,
                               kSnapshots,
                               kCheckpointBytes,
                               kCheckpoints,
                               kCheckpointEvery,
                               kCheckpointIteration,
                               kIteration};

/// Of so many iterations a mean tells something of how it was before, and of a look of some
/// seconds.
constexpr double kTellingBefore = 20, kTellingNow = 3;
/// What happens in every healthy cluster when epochs change, and when a job ends.
constexpr std::array<std::string_view, 4> kHarmless = {"duplicate", "epoch", "stale_epoch", "late"};

std::string_view role_text(Role role) {
  switch (role) {
    case Role::kServer:
      return "server";
    case Role::kWorker:
      return "worker";
    case Role::kCoordinator:
      break;
  }
  return "coordinator";
}

/// The epoch that the page is of, where it is another than the job's: of another cluster at that
/// address, whose nodes have ranks too. "" where it is the same.
std::string other_epoch(const MetricsTarget& target, const MetricsPage& page,
                        const v1::GetStatusResponse& status) {
  const std::optional<double> epoch =
      page.sum(target.role == Role::kCoordinator ? kEpoch : kNodeEpoch);
  if (epoch == static_cast<double>(status.epoch())) return "";
  return absl::StrCat("at ", target.address, " is a ", std::string(role_text(target.role)), " in ",
                      epoch ? absl::StrCat("epoch ", *epoch) : "no epoch", ", the job is in ",
                      status.epoch());
}

/// What one daemon's counters did between two readings of them.
class Look {
 public:
  Look(const MetricsPage& before, const MetricsPage& after) : before_(before), after_(after) {}

  double now(std::string_view name, const MetricsPage::Labels& labels = {}) const {
    return after_.sum(name, labels).value_or(0.0);
  }
  std::optional<double> gauge(std::string_view name) const { return after_.sum(name); }
  /// Of both readings, so that what is over in a moment is not told.
  double least(std::string_view name) const {
    return std::min(before_.sum(name).value_or(0.0), now(name));
  }
  /// A daemon that was started again meanwhile counts from 0: nothing is said of the earlier one.
  double grew(std::string_view name, const MetricsPage::Labels& labels = {}) const {
    return std::max(now(name, labels) - before_.sum(name, labels).value_or(0.0), 0.0);
  }
  std::map<std::string, double> grew_by(std::string_view name, std::string_view label) const {
    const std::map<std::string, double> then = before_.by(name, label);
    std::map<std::string, double> grown;
    for (const auto& [value, count] : after_.by(name, label)) {
      const auto found = then.find(value);
      const double more = count - (found == then.end() ? 0.0 : found->second);
      if (more > 0.0) grown.emplace(printable(value), more);
    }
    return grown;
  }

  bool is_unchanged(std::string_view name) const { return before_.sum(name) == after_.sum(name); }

  void compute(DoctorFacts::Daemon& daemon) const {
    // Layers' counters begin anew with every epoch.
    if (!is_unchanged(kNodeEpoch)) return;
    daemon.compute_before_s = per_iteration(computed(before_), iterations(before_), kTellingBefore);
    daemon.compute_now_s = per_iteration(computed(after_) - computed(before_),
                                         iterations(after_) - iterations(before_), kTellingNow);
  }

 private:
  static double computed(const MetricsPage& page) {
    return page.sum(kForward).value_or(0.0) + page.sum(kBackward).value_or(0.0);
  }
  /// Every parameter layer is synchronised once in each.
  static double iterations(const MetricsPage& page) {
    double most = 0.0;
    for (const auto& [layer, count] : page.by(kSynced, "layer")) most = std::max(most, count);
    return most;
  }
  static std::optional<double> per_iteration(double seconds, double iterations, double telling) {
    if (iterations < telling || seconds <= 0.0) return std::nullopt;
    return seconds / iterations;
  }

  const MetricsPage& before_;
  const MetricsPage& after_;
};

/// "" when the page is the target's: of its role and rank, or of the coordinator of this job.
std::string not_of(const MetricsTarget& target, const MetricsPage& page,
                   const v1::GetStatusResponse& status) {
  const std::string role(role_text(target.role));
  if (!page.sum(kBuildInfo, {{"role", role}})) {
    const std::map<std::string, double> roles = page.by(kBuildInfo, "role");
    return absl::StrCat(
        "at ", target.address, " is ",
        roles.empty() ? "no daemon of ours" : absl::StrCat("a ", printable(roles.begin()->first)));
  }
  if (target.role == Role::kCoordinator) {
    return page.sum(kJobInfo, {{"id", status.job_id()}})
               ? ""
               : absl::StrCat("at ", target.address, " is the coordinator of another job");
  }
  const std::optional<double> rank = page.sum(kRank);
  if (rank == static_cast<double>(target.rank)) return "";
  return absl::StrCat("at ", target.address, " is a ", role,
                      rank ? absl::StrCat(" of rank ", *rank) : " without a part in a job");
}

DoctorFacts::Daemon facts_of(const MetricsTarget& target, const Look& look, double unix_now_s) {
  DoctorFacts::Daemon daemon{.role = target.role, .name = target.name};
  daemon.broken_streams = look.grew_by(kRetries, "peer");
  daemon.refused_messages = look.grew_by(kRefusedMessages, "reason");
  for (const std::string_view reason : kHarmless) {
    daemon.refused_messages.erase(std::string(reason));
  }
  daemon.refused_connections = look.grew_by(kRefusedConnections, "reason");
  daemon.shared_memory_bytes = look.grew(kSent, {{"path", "shared_memory"}});
  daemon.socket_bytes = look.grew(kSent, {{"path", "socket"}});
  if (const auto expiry = look.gauge(kExpiry)) daemon.certificate_left_s = *expiry - unix_now_s;
  switch (target.role) {
    case Role::kWorker:
      look.compute(daemon);
      daemon.gpu_utilization = look.gauge(kUtilization);
      daemon.gpu_celsius = look.gauge(kCelsius);
      break;
    case Role::kServer:
      daemon.streams = look.now(kStreams);
      daemon.paused_streams = look.least(kPaused);
      daemon.early_gradient_bytes = look.now(kEarly);
      daemon.store_errors = look.now(kStoreErrors);
      daemon.disk_free_bytes = look.gauge(kDiskFree);
      daemon.disk_bytes = look.gauge(kDisk);
      daemon.snapshots_failed = look.grew(kSnapshots, {{"result", "failed"}});
      break;
    case Role::kCoordinator:
      // What is in the making when an epoch ends counts as failed, too.
      if (look.is_unchanged(kEpoch)) {
        daemon.checkpoints_failed = look.grew(kCheckpoints, {{"result", "failed"}});
      }
      daemon.checkpoint_every = look.now(kCheckpointEvery);
      if (look.is_unchanged(kCheckpointIteration)) {
        daemon.iterations_since_checkpoint =
            std::max(look.least(kIteration) - look.now(kCheckpointIteration), 0.0);
      }
      break;
  }
  return daemon;
}

}  // namespace

std::vector<MetricsTarget> metrics_targets(const v1::GetStatusResponse& status,
                                           const DoctorPlace& here) {
  std::vector<MetricsTarget> targets;
  const auto add = [&](Role role, const v1::NodeStatus* node, const std::string& address) {
    MetricsTarget target{.role = role, .name = std::string(role_text(role))};
    if (node != nullptr) {
      target.rank = node->rank();
      absl::StrAppend(&target.name, " ", node->rank());
      if (!node->address().empty()) absl::StrAppend(&target.name, " (", node->address(), ")");
    }
    const absl::StatusOr<HostPort> parsed = parse_host_port(address, PortZero::kRefused);
    if (address.empty()) {
      target.why_not = "started without --metrics-listen";
    } else if (!parsed.ok()) {
      target.why_not = std::string(parsed.status().message());
    } else if (is_loopback_host(parsed->host) &&
               !(node == nullptr ? here.is_coordinators
                                 : here.machine != 0 && node->load().machine() == here.machine)) {
      target.why_not = "shown to their own machines only (--metrics-listen)";
    } else {
      target.address = to_string(*parsed);
    }
    targets.push_back(std::move(target));
  };
  add(Role::kCoordinator, nullptr, status.metrics_address());
  for (const v1::NodeStatus& node : status.servers()) {
    if (node.rank() >= 0) add(Role::kServer, &node, node.metrics_address());
  }
  for (const v1::NodeStatus& node : status.workers()) {
    if (node.rank() >= 0) add(Role::kWorker, &node, node.metrics_address());
  }
  return targets;
}

absl::Span<const std::string_view> doctor_metrics() { return kNames; }

void add_metrics(const std::vector<MetricsTarget>& targets,
                 const std::vector<MetricsReading>& readings, const v1::GetStatusResponse& status,
                 double unix_now_s, DoctorFacts& facts) {
  // Who shares a reason shares a note.
  std::map<std::string, std::vector<std::string>> missing;
  double checkpoint_bytes = 0.0;
  for (std::size_t t = 0; t < targets.size() && t < readings.size(); ++t) {
    const MetricsTarget& target = targets[t];
    const MetricsReading& reading = readings[t];
    std::string why = target.why_not;
    for (const auto* page : {&reading.before, &reading.after}) {
      if (!why.empty()) break;
      why = page->ok() ? not_of(target, **page, status) : std::string(page->status().message());
    }
    if (why.empty()) why = other_epoch(target, *reading.after, status);
    if (!why.empty()) {
      missing[why].push_back(target.name);
      continue;
    }
    facts.daemons.push_back(facts_of(target, Look(*reading.before, *reading.after), unix_now_s));
    if (target.role == Role::kCoordinator) {
      checkpoint_bytes = reading.after->sum(kCheckpointBytes).value_or(0.0);
    }
  }
  // Servers count since they were started, other jobs included; the coordinator knows this job's.
  const auto servers = static_cast<double>(std::count_if(
      targets.begin(), targets.end(), [](const auto& t) { return t.role == Role::kServer; }));
  for (DoctorFacts::Daemon& daemon : facts.daemons) {
    if (daemon.role == Role::kServer) daemon.snapshot_bytes = checkpoint_bytes / servers;
  }
  for (const auto& [why, names] : missing) {
    facts.notes.push_back(
        absl::StrCat("metrics not read of ", absl::StrJoin(names, ", "), ": ", why));
  }
}

}  // namespace poseidon
