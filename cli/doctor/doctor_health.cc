#include "cli/doctor/doctor_health.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

using Role = DoctorFacts::Daemon::Role;

/// A disk with a smaller free share is nearly full ...
constexpr double kFullDisk = 0.1;
/// ... and so is one without room for this many parts of checkpoints: the next is written before
/// the oldest is removed.
constexpr double kPartsLeft = 2.0;
/// This many checkpoints were due since the newest one.
constexpr double kOverdue = 3.0;
/// Fewer refusals in that time may be a port scan, or a change of the epoch.
constexpr double kManyRefused = 3.0;
constexpr double kDayS = 86400.0, kCertificateDays = 14.0;
/// Minimum share of the waiting to report, when shared memory would avoid it.
constexpr double kWaitsForPath = 0.1;

std::string counted(const std::map<std::string, double>& counts) {
  std::vector<std::string> parts;
  parts.reserve(counts.size());
  for (const auto& [what, count] : counts) {
    parts.push_back(absl::StrFormat("%.0f %s", count, what));
  }
  return absl::StrJoin(parts, ", ");
}

class Health {
 public:
  explicit Health(const DoctorFacts& facts) : f_(facts) {}

  std::vector<Finding> run() {
    for (const auto& daemon : f_.daemons) store(daemon);
    for (const auto& daemon : f_.daemons) space(daemon);
    for (const auto& daemon : f_.daemons) checkpoint(daemon);
    for (const auto& daemon : f_.daemons) streams(daemon);
    for (const auto& daemon : f_.daemons) paused(daemon);
    path();
    for (const auto& worker : f_.workers) samples(worker);
    for (const auto& daemon : f_.daemons) refused(daemon);
    for (const auto& daemon : f_.daemons) certificate(daemon);
    return std::move(findings_);
  }

 private:
  void add(Finding::Kind kind, const std::string& guilty, std::string what, std::string remedy) {
    findings_.push_back(
        {.kind = kind, .guilty = guilty, .what = std::move(what), .remedy = std::move(remedy)});
  }

  void store(const DoctorFacts::Daemon& daemon) {
    if (daemon.store_errors <= 0.0) return;
    add(Finding::Kind::kStore, daemon.name,
        absl::StrFormat("RocksDB of %s reports %.0f errors of its disk", daemon.name,
                        daemon.store_errors),
        "look at the disk (dmesg, smartctl) and the server's log; start the server on another one "
        "if it is failing");
  }

  void space(const DoctorFacts::Daemon& daemon) {
    if (!daemon.disk_free_bytes || !daemon.disk_bytes || *daemon.disk_bytes <= 0.0) return;
    const double free = *daemon.disk_free_bytes, share = free / *daemon.disk_bytes;
    const bool holds_next = free >= kPartsLeft * daemon.snapshot_bytes;
    if (share >= kFullDisk && holds_next) return;
    add(Finding::Kind::kSpace, daemon.name,
        absl::StrFormat(
            "the disk of %s has %s (%.1f %%) left%s", daemon.name, bytes_text(free), share * 100.0,
            daemon.snapshot_bytes > 0.0 ? absl::StrCat(", its part of a checkpoint takes about ",
                                                       bytes_text(daemon.snapshot_bytes))
                                        : ""),
        "make room in its --data-dir's file system, or keep fewer checkpoints (checkpoint.keep)");
  }

  void checkpoint(const DoctorFacts::Daemon& coordinator) {
    const bool fails = coordinator.checkpoints_failed > 0.0;
    const bool is_overdue =
        coordinator.checkpoint_every > 0.0 &&
        coordinator.iterations_since_checkpoint > kOverdue * coordinator.checkpoint_every;
    if (!fails && !is_overdue) return;
    std::string what =
        is_overdue
            ? absl::StrFormat("%.0f iterations are in no checkpoint, one is due every %.0f",
                              coordinator.iterations_since_checkpoint, coordinator.checkpoint_every)
            : "a checkpoint failed just now";
    std::vector<std::string> failing;
    for (const auto& server : f_.daemons) {
      if (server.snapshots_failed <= 0.0) continue;
      failing.push_back(absl::StrFormat("%s (%.0f parts in these seconds)", server.name,
                                        server.snapshots_failed));
    }
    if (!failing.empty()) absl::StrAppend(&what, "; failed at ", absl::StrJoin(failing, ", "));
    add(Finding::Kind::kCheckpoint, "", std::move(what),
        "the coordinator's log and `poseidon status` say why; look at the disks of the servers");
  }

  void streams(const DoctorFacts::Daemon& daemon) {
    if (daemon.broken_streams.empty()) return;
    std::map<std::string, double> to;
    for (const auto& [peer, count] : daemon.broken_streams) to["to a " + peer] = count;
    add(Finding::Kind::kStreams, daemon.name,
        absl::StrFormat("streams of %s broke or could not be opened in these seconds: %s",
                        daemon.name, counted(to)),
        "its log names the reason and the other node; check that machine, the network between, and "
        "firewalls "
        "that cut connections");
  }

  void paused(const DoctorFacts::Daemon& server) {
    if (server.paused_streams <= 0.0) return;
    add(Finding::Kind::kPaused, server.name,
        absl::StrFormat("%s leaves %.0f of %.0f streams unread: %s of gradients wait in its "
                        "memory for those of slower workers",
                        server.name, server.paused_streams, server.streams,
                        bytes_text(server.early_gradient_bytes)),
        "find the slow worker; if all are equally fast, give the server more --pending-limit-mib");
  }

  /// Only when all processes are on one machine is it certain that no sockets are needed.
  void path() {
    double shared = 0.0, socket = 0.0, stall_s = 0.0;
    for (const auto& daemon : f_.daemons) {
      shared += daemon.shared_memory_bytes;
      socket += daemon.socket_bytes;
    }
    for (const auto& worker : f_.workers) {
      stall_s += worker.stall_s / static_cast<double>(f_.workers.size());
    }
    const bool one_machine = f_.machines.size() == 1 && f_.machines.front().processes.size() ==
                                                            f_.workers.size() + f_.servers.size();
    if (!one_machine || socket <= shared || stall_s < kWaitsForPath * f_.iteration_s) return;
    add(Finding::Kind::kPath, "",
        absl::StrFormat("all processes are on one machine, yet %s of %s went through "
                        "sockets in these seconds",
                        bytes_text(socket), bytes_text(socket + shared)),
        "shared memory needs one user, one network namespace and one PID namespace for them, and "
        "no --no-shared-memory");
  }

  void samples(const DoctorFacts::Worker& worker) {
    if (worker.corrupt_samples == 0) return;
    add(Finding::Kind::kSamples, worker.node.name,
        absl::StrFormat(
            "%s could not read %d samples since the epoch began; other samples replace them",
            worker.node.name, worker.corrupt_samples),
        "its log names them; make the data again (poseidon data pack), or check its disk");
  }

  static double total(const std::map<std::string, double>& counts) {
    double sum = 0.0;
    for (const auto& [what, count] : counts) sum += count;
    return sum;
  }
  void refused(const DoctorFacts::Daemon& daemon) {
    if (total(daemon.refused_messages) >= kManyRefused) {
      add(Finding::Kind::kRefused, daemon.name,
          absl::StrFormat("%s refuses messages (in these seconds: %s)", daemon.name,
                          counted(daemon.refused_messages)),
          "its log names the sender; do all nodes run one version?");
    }
    if (total(daemon.refused_connections) >= kManyRefused) {
      add(Finding::Kind::kRefused, daemon.name,
          absl::StrFormat("%s refuses connections (in these seconds: %s)", daemon.name,
                          counted(daemon.refused_connections)),
          "its log names the reason and, if known, the other side (docs/security.md)");
    }
  }

  void certificate(const DoctorFacts::Daemon& daemon) {
    if (!daemon.certificate_left_s || *daemon.certificate_left_s >= kCertificateDays * kDayS) {
      return;
    }
    add(Finding::Kind::kCertificate, daemon.name,
        *daemon.certificate_left_s > 0.0
            ? absl::StrFormat("the certificate of %s expires in %.1f days", daemon.name,
                              *daemon.certificate_left_s / kDayS)
            : absl::StrFormat("the certificate of %s has expired: a node that loses its connection "
                              "cannot return",
                              daemon.name),
        "make another (poseidon tls issue; poseidon tls init if its authority is what expires), "
        "copy it there and start the daemon again; a coordinator with --job-on-stop keep continues "
        "its job, any other ends it: resume it with poseidon checkpoint restore");
  }

  const DoctorFacts& f_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> health_findings(const DoctorFacts& facts) { return Health(facts).run(); }

}  // namespace poseidon
