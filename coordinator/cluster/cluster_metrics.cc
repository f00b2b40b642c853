// Cluster's part about being watched: the figures of a scrape, and whom Prometheus shall scrape
// (cluster.cc has the rest).

#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/daemon/daemon.h"
#include "common/files/file_io.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/members/admission.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// Between two attempts to write it to a disk that is full.
constexpr Nanoseconds kTargetsPause = std::chrono::seconds(2);
constexpr const char* kTargetsFile = "prometheus-targets.json";

/// As others reach it: a wildcard is none, the name of this machine may be.
std::string reachable_metrics_address(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = parse_host_port(address, PortZero::kRefused);
  if (!parsed.ok() || !is_wildcard_host(parsed->host)) return address;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return address;
  return to_string({name.data(), parsed->port});
}

/// A node that is lost has to be brought back by somebody, though the job may go on without it.
spdlog::level::level_enum log_level(EventKind kind) {
  switch (kind) {
    case EventKind::kAlarm:
      return spdlog::level::err;
    case EventKind::kLoss:
    case EventKind::kRecovery:
      return spdlog::level::warn;
    case EventKind::kJoin:
    case EventKind::kLeave:
    case EventKind::kJob:
    case EventKind::kCheckpoint:
      break;
  }
  return spdlog::level::info;
}

}  // namespace

CoordinatorFigures Cluster::figures() {
  CoordinatorFigures figures;
  const std::lock_guard<std::mutex> lock(mutex_);
  v1::GetStatusResponse nodes;
  fill_nodes(nodes);
  const auto add = [&](const auto& statuses, NodeRole role) {
    for (const v1::NodeStatus& node : statuses) {
      // Of a job that is over, nobody is missing.
      if (node.state() == "lost" && (!job_ || job_->ended())) continue;
      figures.nodes.push_back({.role = role_name(role),
                               .rank = node.rank() < 0 ? "" : absl::StrCat(node.rank()),
                               .address = node.address(),
                               .state = node.state()});
    }
  };
  add(nodes.workers(), NodeRole::kWorker);
  add(nodes.servers(), NodeRole::kServer);
  figures.is_cut_off = membership_.isolated_since().has_value();
  figures.counts = counts_;
  figures.refusals = own_refusals_;
  if (!job_) return figures;
  figures.counts.jobs += job_->counts();
  JobFigures& job = figures.job.emplace();
  const CheckpointCommit& checkpoints = job_->checkpoints();
  job.id = job_->description().id;
  job.state = job_state_name(job_state());
  job.iterations = job_->description().iterations;
  job.progress = job_->progress(clock_->now());
  if (job_->ended()) job.progress.images_per_s = 0.0;  // what it was is in its status
  job.epoch = job_->epoch();
  job.workers = static_cast<std::size_t>(std::ranges::count_if(
      job_->workers(), [](const Participant& p) { return p.state != ParticipantState::kLost; }));
  // An operator who restores it may ask for fewer than it ever had.
  const std::uint32_t asked = job_->description().workers;
  job.begun_with = asked > 0 ? std::min(asked, job_->begun_with()) : job_->begun_with();
  job.checkpoint_every = job_->description().checkpoint_every;
  job.checkpoints_kept = checkpoints.committed().size();
  if (job_->plan() && job_->plan()->prediction) {
    job.predicted_iteration_s = job_->plan()->prediction->iteration_s;
  }
  if (const CheckpointManifest* newest = checkpoints.newest_usable()) {
    job.newest = NewestCheckpoint{.iteration = newest->iteration(),
                                  .bytes = newest->bytes,
                                  .time_unix_s = newest->time_unix_s,
                                  .seconds = checkpoints.slowest_seconds()};
  }
  return figures;
}

/// For the log and for those who watch.
void Cluster::note(EventKind kind, const std::string& text) {
  const std::string line = one_line(text);
  spdlog::log(log_level(kind), "{}", line);
  events_.add(kind, line, clock_->unix_time().count());
}

StatusView Cluster::view() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {.status = status_now(), .curve = curve_, .events = events_.all()};
}

void Cluster::set_metrics_address(const std::string& address, bool has_tls) {
  const std::lock_guard<std::mutex> lock(mutex_);
  metrics_address_ = reachable_metrics_address(address);
  pages_have_tls_ = has_tls;
  disk_.background->enqueue([path = state_->path() / kTargetsFile] { remove_leftovers(path); });
  write_targets();
}

/// When it has changed. It stays when the coordinator ends: the nodes may go on.
void Cluster::write_targets() {
  std::string text = prometheus_targets(metrics_address_, membership_.nodes(), pages_have_tls_);
  if (text == targets_) return;
  targets_ = std::move(text);
  disk_.background->enqueue([this, path = state_->path() / kTargetsFile, text = targets_] {
    const absl::Status written = write_file_atomically(path, text);
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool was_written = std::exchange(targets_are_written_, written.ok());
    if (written.ok()) return;
    targets_tried_ = clock_->now();
    if (targets_ == text) targets_.clear();
    if (!was_written) return;
    spdlog::warn("{}; Prometheus does not hear of the change, and it is tried again",
                 std::string(written.message()));
  });
}

/// What found no room.
void Cluster::write_targets_again() {
  if (targets_are_written_ || clock_->now() - targets_tried_ < kTargetsPause) return;
  targets_tried_ = clock_->now();
  write_targets();
}

// ---- what nodes cost their machines ----

void Cluster::take_load(NodeId from, const v1::NodeLoad& load) {
  const auto sensible = [](double seconds) { return seconds >= 0.0 && std::isfinite(seconds); };
  if (!sensible(load.cpu_seconds()) || !sensible(load.cpu_wait_seconds()) ||
      !sensible(load.disk_seconds())) {
    refuse(Refusal::kMalformed, absl::StrCat("the load of ", sender_text(from)));
    return;
  }
  loads_.add(from,
             {.machine = load.machine(),
              .cores = load.cores(),
              .cpu_seconds = load.cpu_seconds(),
              .cpu_wait_seconds = load.cpu_wait_seconds(),
              .disk_seconds = load.disk_seconds(),
              .disk_bytes = load.disk_bytes(),
              .disk_waiting = load.disk_waiting()},
             clock_->now());
}

}  // namespace poseidon
