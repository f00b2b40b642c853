#include "coordinator/watch/metrics.h"

#include <utility>

#include "common/daemon/daemon.h"
#include "coordinator/job/reports/reports.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

/// States as JobRun and Cluster name them: a series each, so that queries find a 0 where a state is
/// not.
constexpr std::array kJobStates = {"idle",       "waiting", "preparing", "running",
                                   "recovering", "done",    "stopped",   "failed"};
constexpr std::array kNodeStates = {"idle",   "preparing", "ready", "running", "finished",
                                    "halted", "waiting",   "away",  "lost"};
constexpr std::array kRoles = {NodeRole::kWorker, NodeRole::kServer};

void add_nodes(const CoordinatorFigures& figures, MetricFamilies& families) {
  auto members = gauge_family("poseidon_members", "Nodes of the cluster, by role and state");
  for (const NodeRole role : kRoles) {
    for (const char* state : kNodeStates) {
      std::size_t count = 0;
      for (const NodeInState& node : figures.nodes) {
        count += node.role == role_name(role) && node.state == state ? 1 : 0;
      }
      add_value(members, {{"role", role_name(role)}, {"state", state}}, static_cast<double>(count));
    }
  }
  families.push_back(std::move(members));

  auto states = gauge_family("poseidon_node_state", "1 for the state that a node is in");
  for (const NodeInState& node : figures.nodes) {
    add_value(states,
              {{"role", node.role},
               {"rank", node.rank},
               {"address", node.address},
               {"state", node.state}},
              1.0);
  }
  families.push_back(std::move(states));

  auto departures = counter_family("poseidon_departures_total",
                                   "Nodes that are gone: with a goodbye (left) or without (lost)");
  for (const NodeRole role : kRoles) {
    const auto found = figures.counts.departures.find(role);
    const auto counts =
        found == figures.counts.departures.end() ? std::array<std::uint64_t, 2>{} : found->second;
    for (const auto& [kind, name] :
         {std::pair(DepartureKind::kLeft, "left"), {DepartureKind::kLost, "lost"}}) {
      add_value(departures, {{"role", role_name(role)}, {"how", name}},
                static_cast<double>(counts[static_cast<std::size_t>(kind)]));
    }
  }
  families.push_back(std::move(departures));
  families.push_back(single_gauge("poseidon_coordinator_cut_off",
                                  "1 while no node sends messages, so that no node is given up",
                                  figures.is_cut_off ? 1.0 : 0.0));
}

void add_counts(const CoordinatorFigures& figures, MetricFamilies& families) {
  const ClusterCounts& counts = figures.counts;
  auto iterations =
      counter_family("poseidon_iterations_total", "Iterations that every worker has reported");
  add_value(iterations, {}, static_cast<double>(counts.iterations));
  auto passes = counter_family("poseidon_passes_total",
                               "Forward and backward passes of all workers, in training and tests");
  add_value(passes, {}, static_cast<double>(counts.jobs.passes));
  auto jobs = counter_family("poseidon_jobs_total", "Jobs that ended, by result");
  add_value(jobs, {{"result", "done"}}, static_cast<double>(counts.jobs_done));
  add_value(jobs, {{"result", "failed"}}, static_cast<double>(counts.jobs_failed));
  add_value(jobs, {{"result", "stopped"}}, static_cast<double>(counts.jobs_stopped));
  auto recoveries =
      counter_family("poseidon_recoveries_total", "New epochs of jobs in progress, by cause");
  for (int r = 0; r < static_cast<int>(EpochEnd::kCount); ++r) {
    const auto reason = static_cast<EpochEnd>(r);
    add_value(recoveries, {{"reason", epoch_end_name(reason)}},
              static_cast<double>(counts.jobs.of(reason)));
  }
  auto checkpoints =
      counter_family("poseidon_checkpoints_total", "Attempts at a checkpoint, by result");
  add_value(checkpoints, {{"result", "committed"}},
            static_cast<double>(counts.jobs.checkpoints_committed));
  add_value(checkpoints, {{"result", "failed"}},
            static_cast<double>(counts.jobs.checkpoints_failed));
  auto refused = counter_family("poseidon_refused_messages_total",
                                "Messages that were refused or dropped, by reason");
  for (int r = 0; r < static_cast<int>(Refusal::kCount); ++r) {
    const char* const reason = refusal_name(static_cast<Refusal>(r));
    const auto found = figures.refusals.find(reason);
    add_value(refused, {{"reason", reason}, {"role", "coordinator"}},
              found == figures.refusals.end() ? 0.0 : static_cast<double>(found->second));
  }
  for (auto* family : {&iterations, &passes, &jobs, &recoveries, &checkpoints, &refused}) {
    families.push_back(std::move(*family));
  }
}

void add_checkpoint(const JobFigures& job, MetricFamilies& families) {
  const auto gauge = [&families](const char* name, const char* help, double value) {
    families.push_back(single_gauge(name, help, value));
  };
  gauge("poseidon_checkpoint_every_iterations",
        "Iterations from one periodic checkpoint of the job to the next; 0: none",
        static_cast<double>(job.checkpoint_every));
  gauge("poseidon_checkpoints", "Committed checkpoints that the job has",
        static_cast<double>(job.checkpoints_kept));
  gauge("poseidon_checkpoint_copies_missing",
        "Copies that the job's checkpoints lack of those that checkpoint.replicas asks for",
        static_cast<double>(job.copies_missing));
  if (!job.newest) return;
  gauge("poseidon_checkpoint_iteration", "Iteration of the job's newest committed checkpoint",
        static_cast<double>(job.newest->iteration));
  gauge("poseidon_checkpoint_time_seconds",
        "Time when the job's newest checkpoint was committed, since 1970",
        static_cast<double>(job.newest->time_unix_s));
  gauge("poseidon_checkpoint_bytes", "Size of the job's newest checkpoint on all servers together",
        static_cast<double>(job.newest->bytes));
  if (!job.newest->seconds) return;
  gauge("poseidon_checkpoint_duration_seconds",
        "Time that the slowest server wrote at the last checkpoint, while training continued",
        *job.newest->seconds);
}

void add_job(const JobFigures& job, MetricFamilies& families) {
  const auto gauge = [&families](const char* name, const char* help, double value) {
    families.push_back(single_gauge(name, help, value));
  };
  auto info = gauge_family("poseidon_job_info", "1, with the id of the job in progress or last");
  add_value(info, {{"id", job.id}}, 1.0);
  families.push_back(std::move(info));
  gauge("poseidon_job_iterations", "Iterations that the job asks for; 0: its programs know",
        static_cast<double>(job.iterations));
  gauge("poseidon_job_iteration", "Iterations of the job that are complete",
        static_cast<double>(job.progress.completed));
  gauge("poseidon_job_training_seconds", "Time since the job's training began",
        job.progress.training_seconds);
  gauge("poseidon_job_standstill_seconds",
        "For how long the job has made no progress though its nodes are well; 0: it goes on",
        job.progress.standstill_seconds);
  gauge("poseidon_job_workers", "Workers that have a part in the job and are not lost",
        static_cast<double>(job.workers));
  if (job.begun_with > 0) {
    gauge("poseidon_job_workers_at_start", "Workers that the job began with",
          static_cast<double>(job.begun_with));
  }
  gauge("poseidon_epoch", "Epoch of the job", static_cast<double>(job.epoch.value()));
  gauge("poseidon_images_per_second",
        "Training samples of all workers per second, over the last seconds",
        job.progress.images_per_s);
  if (job.progress.loss) {
    gauge("poseidon_loss", "Mean training loss of the last complete iteration", *job.progress.loss);
  }
  if (job.progress.test) {
    gauge("poseidon_test_loss", "Mean loss of the last test", job.progress.test->loss);
    gauge("poseidon_test_accuracy", "Share of samples that the last test got right, 0 to 1",
          job.progress.test->accuracy);
  }
  if (job.predicted_iteration_s) {
    gauge("poseidon_predicted_iteration_seconds", "Prediction of the current plan",
          *job.predicted_iteration_s);
  }
  add_checkpoint(job, families);
}

}  // namespace

MetricFamilies coordinator_page(const CoordinatorFigures& figures) {
  MetricFamilies families;
  add_nodes(figures, families);
  add_counts(figures, families);
  auto state = gauge_family("poseidon_job_state", "1 for the state that the job is in");
  const std::string now = figures.job ? figures.job->state : "idle";
  for (const char* name : kJobStates) add_value(state, {{"state", name}}, now == name ? 1.0 : 0.0);
  families.push_back(std::move(state));
  if (figures.job) add_job(*figures.job, families);
  return families;
}

std::string prometheus_targets(const std::string& own, const std::vector<NodeInfo>& nodes,
                               bool has_tls) {
  nlohmann::json groups = nlohmann::json::array();
  const auto add = [&groups, has_tls](const std::string& address, const std::string& daemon) {
    if (address.empty()) return;
    nlohmann::json labels = {{"daemon", daemon}};
    const std::string scheme = page_scheme(address, has_tls);
    if (scheme != "http") labels["__scheme__"] = scheme;
    groups.push_back({{"targets", {address}}, {"labels", std::move(labels)}});
  };
  add(own, "coordinator");
  for (const NodeInfo& node : nodes) add(node.metrics_address, role_name(node.role));
  // A node may say anything of itself.
  return groups.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace poseidon
