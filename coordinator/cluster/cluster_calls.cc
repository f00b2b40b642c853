// The operator's half of Cluster: submit and status (cluster.cc has the nodes' half).

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/daemon/log.h"
#include "common/files/file_io.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/planning/calibrate.h"
#include "coordinator/planning/node_counts.h"
#include "coordinator/planning/planner.h"
#include "coordinator/records/durable_job.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

constexpr std::uint64_t kMaxRunJobFileBytes = 64 << 20;

/// A run has a folder of its own, "" being one that is made for it, and not one in which the
/// coordinator keeps its state.
absl::Status check_run_path(const std::filesystem::path& path, const std::filesystem::path& state) {
  if (path.empty()) return absl::OkStatus();
  if (!path.is_absolute()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the run directory ", path.string(), " must be an absolute path"));
  }
  bool is_ours = is_same_folder(path, state);
  for (std::filesystem::path folder = path; !is_ours && folder.has_relative_path();
       folder = folder.parent_path()) {
    is_ours = is_same_folder(folder, state / "checkpoints");
  }
  if (!is_ours) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--run-dir ", path.string(), ": in ", state.string(),
                   " the coordinator keeps its own state; a run needs a folder of its own"));
}

/// Whether the metrics in a run directory can be those of this job: a later job may have taken it.
absl::Status check_still_of_job(const std::filesystem::path& path, const std::string& job_json) {
  const absl::StatusOr<std::string> there = read_file(path / "job.json", kMaxRunJobFileBytes);
  if (absl::IsNotFound(there.status())) return absl::OkStatus();
  POSEIDON_RETURN_IF_ERROR(there.status());
  if (*there == job_json) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the run directory ", path.string(),
                   " holds another job's files by now; choose a new one with --run-dir"));
}

/// A run begins by moving an earlier one's model aside: it cannot begin with either of the two.
absl::Status check_weights_stay(const std::filesystem::path& weights,
                                const std::filesystem::path& run_directory) {
  if (!RunDirectory::moves_as_run_begins(run_directory, weights)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("init.weights: ", weights.string(), " would move when the run in ",
                   run_directory.string(), " begins; choose another --run-dir"));
}

}  // namespace

/// Who goes on from a checkpoint may have lost a server for good, and cannot change the job: it has
/// fewer copies then.
absl::Status Cluster::check_counts(const v1::SubmitRequest& request, const ResolvedJob& job,
                                   bool from_checkpoint) {
  if (job.batch_size < 1 || job.batch_size > std::numeric_limits<std::uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch_size is ", job.batch_size, "; it must be positive"));
  }
  if (job.iterations < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("iterations is ", job.iterations, "; it must be positive"));
  }
  if (job.min_workers < 1 || job.max_workers < job.min_workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("membership asks for ", job.min_workers, " to ", job.max_workers,
                     " workers; give 1 <= min_workers <= max_workers"));
  }
  return check_node_counts({.min_workers = job.min_workers,
                            .max_workers = job.max_workers,
                            .replicas = from_checkpoint ? 1 : job.replicas},
                           request.workers(), request.servers());
}

std::string Cluster::job_text() const {
  const JobDescription& d = job_->description();
  return absl::StrFormat("job %s is %s (%d of %d iterations)", d.id, job_state_name(job_state()),
                         job_->progress(clock_->now()).completed, d.iterations);
}

absl::Status Cluster::reserve_submission() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (shutting_down_) return absl::UnavailableError("the coordinator is stopping");
  if (submitting_) {
    return absl::FailedPreconditionError(
        "another job is being submitted at this moment: a cluster runs one job at a time");
  }
  if (job_active()) {
    return absl::FailedPreconditionError(absl::StrCat(
        job_text(), ": a cluster runs one job at a time; submit again when it has ended"));
  }
  submitting_ = true;
  return absl::OkStatus();
}

absl::StatusOr<v1::SubmitResponse> Cluster::submit(const v1::SubmitRequest& request) {
  return begin_job(request, std::nullopt);
}

absl::StatusOr<v1::EndJobResponse> Cluster::end_job(const v1::EndJobRequest& request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (shutting_down_) return absl::UnavailableError("the coordinator is stopping");
  if (!job_active()) {
    return absl::FailedPreconditionError(absl::StrCat("no job is active: there is nothing to stop",
                                                      job_ ? absl::StrCat("; ", job_text()) : ""));
  }
  const JobDescription& description = job_->description();
  if (!request.job_id().empty() && request.job_id() != description.id) {
    return absl::FailedPreconditionError(absl::StrCat(
        job_text(), ", and job ", printable(request.job_id()), " is not active: nothing is done"));
  }
  apply(job_->stop("an operator stopped it (poseidon stop)",
                   std::chrono::seconds(request.checkpoint_within_s()), clock_->now()));
  v1::EndJobResponse out;
  out.set_job_id(description.id);
  out.set_run_directory(description.run_directory);
  out.set_waits(!job_->ended());
  return out;
}

/// `source`: go on from this checkpoint, whose job the request has.
absl::StatusOr<v1::SubmitResponse> Cluster::begin_job(const v1::SubmitRequest& request,
                                                      std::optional<SnapshotId> source) {
  if (request.job_json().size() > options_.max_job_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the job has ", request.job_json().size(),
                                                   " bytes; at most ", options_.max_job_bytes));
  }
  const std::size_t max_nodes = options_.membership.max_nodes;
  if (request.workers() > max_nodes || request.servers() > max_nodes) {
    return absl::InvalidArgumentError(absl::StrCat("a cluster has at most ", max_nodes, " nodes"));
  }
  // One spelling, so that nobody takes it for another one's.
  std::filesystem::path path = plain_folder(request.run_directory());
  const std::filesystem::path state = std::filesystem::absolute(state_->path());
  POSEIDON_RETURN_IF_ERROR(check_run_path(path, state));
  POSEIDON_ASSIGN_OR_RETURN(const ResolvedJob resolved, resolver_(request.job_json()));
  POSEIDON_RETURN_IF_ERROR(check_counts(request, resolved, source.has_value()));
  for (const std::string& warning : resolved.warnings) spdlog::warn("{}", warning);

  POSEIDON_RETURN_IF_ERROR(reserve_submission());
  const absl::Cleanup unreserve = [this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    submitting_ = false;
  };
  POSEIDON_ASSIGN_OR_RETURN(const std::uint64_t epoch, state_->next_epoch());
  const std::string id = absl::StrCat(file_name(resolved.name), "-", epoch);
  if (path.empty()) path = state / "runs" / id;
  JobDescription description = describe_job(request, resolved, path.string());
  description.id = id;
  description.epoch = Epoch(epoch);
  if (source) POSEIDON_RETURN_IF_ERROR(add_source(*source, description));
  const auto begin = description.id == id ? RunDirectory::Begin::kAnew : RunDirectory::Begin::kGoOn;
  if (begin == RunDirectory::Begin::kGoOn) {
    POSEIDON_RETURN_IF_ERROR(check_still_of_job(path, request.job_json()));
  }
  if (!source) POSEIDON_RETURN_IF_ERROR(check_weights_stay(resolved.weights, path));
  const DurableJob record{.id = description.id,
                          .job_json = request.job_json(),
                          .run_directory = path.string(),
                          .workers = request.workers(),
                          .servers = request.servers(),
                          .source = source,
                          .running = std::nullopt};
  // The record comes before the first touch of the directory, which may hold a finished run: whose
  // process dies from here on, the next one knows the job, and opens the directory again.
  const auto refused = [this](const absl::Status& why, const char* what) {
    const absl::Status dropped = state_->drop_job();
    if (!dropped.ok()) spdlog::error("{}", std::string(dropped.message()));
    return absl::Status(why.code(), absl::StrCat(what, why.message()));
  };
  // It may be there all the same, where only its folder could not be synced.
  if (const absl::Status stored = state_->store_job(durable_job_to_json(record)); !stored.ok()) {
    return refused(stored, "");
  }
  absl::StatusOr<std::shared_ptr<RunFiles>> directory =
      disk_.open(path, begin, run_directory_events());
  if (!directory.ok()) return refused(directory.status(), "the run directory (--run-dir): ");
  if ((*directory)->replaced()) {
    spdlog::warn("{} holds an earlier run; its files are replaced", path.string());
  }
  state_->drop_outcome();
  v1::SubmitResponse response;
  response.set_job_id(description.id);
  response.set_run_directory(path.string());
  install_job(std::make_unique<JobRun>(options_.job, std::move(description), clock_->now()),
              request, *std::move(directory), progress_of_earlier(path, begin));
  return response;
}

RunDirectory::Events Cluster::run_directory_events() {
  return {.on_written =
              [this](SnapshotId version) {
                const std::lock_guard<std::mutex> lock(mutex_);
                lines_refused_.clear();
                if (job_ && !ending_) apply(job_->on_metrics_written(version));
              },
          .on_trouble =
              [this](const absl::Status& status) {
                const std::lock_guard<std::mutex> lock(mutex_);
                lines_refused_ = absl::StrCat(
                    status.message(),
                    "; what could not be written is kept, and tried again: free some space");
                note(EventKind::kAlarm, lines_refused_);
              },
          .on_error =
              [this](const absl::Status& status) {
                const std::lock_guard<std::mutex> lock(mutex_);
                spdlog::error("{}", std::string(status.message()));
                if (job_ && job_->ended()) {
                  lines_lost_ = std::string(status.message());
                  note(EventKind::kAlarm, absl::StrCat("job ", job_->description().id,
                                                       " lacks its last lines: ", lines_lost_));
                } else if (job_) {
                  apply(job_->fail(std::string(status.message()), clock_->now()));
                }
              },
          .on_record =
              [this](const absl::Status& status) {
                const std::lock_guard<std::mutex> lock(mutex_);
                if (status.ok()) {
                  record_refused_.clear();
                  note(EventKind::kJob, absl::StrCat(state_->job_file().string(), " is written"));
                  return;
                }
                record_refused_ = absl::StrCat(
                    status.message(),
                    "; the job goes on, and this is tried again, but a coordinator that is started "
                    "now would go on from an older record: free some space");
                note(EventKind::kAlarm, record_refused_);
              },
          .on_closed = [this] { files_are_closed(); }};
}

void Cluster::files_are_closed() {
  std::optional<v1::GetStatusResponse> ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (job_ != nullptr && job_->ended()) {
      ended = outcome();
      if (job_state() == JobState::kDone) {
        ++counts_.jobs_done;
      } else {
        ++(job_->was_stopped() ? counts_.jobs_stopped : counts_.jobs_failed);
      }
    }
  }
  // Only now, that all its files are whole, nobody needs to go on with it.
  if (ended) {
    const absl::StatusOr<std::string> outcome = outcome_to_json(*ended);
    absl::Status status = outcome.ok() ? state_->store_outcome(*outcome) : outcome.status();
    status.Update(state_->drop_job());
    if (!status.ok()) spdlog::error("{}", std::string(status.message()));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const SendStop& stop : std::exchange(stops_after_files_, {})) send_stop(stop);
  files_closed_ = true;
  files_closed_changed_.notify_all();
}

JobDescription Cluster::describe_job(const v1::SubmitRequest& request, const ResolvedJob& resolved,
                                     const std::string& run_directory) const {
  JobDescription description;
  description.name = resolved.name;
  description.workers = request.workers();
  description.servers = request.servers();
  description.min_workers = resolved.min_workers;
  description.max_workers = resolved.max_workers;
  description.batch_size = resolved.batch_size;
  description.iterations = resolved.iterations;
  description.learning_rate = resolved.learning_rate;
  description.job_json = request.job_json();
  description.run_directory = run_directory;
  description.chunk_bytes = resolved.sync.largest_chunk_bytes();
  description.keep_checkpoints = resolved.keep_checkpoints;
  description.replicas = resolved.replicas;
  description.checkpoint_every = resolved.checkpoint_every;
  description.test_every = resolved.test_every;
  description.replace_timeout = Milliseconds(resolved.replace_timeout_ms);
  description.replan = resolved.sync.replan;
  description.with_workers = resolved.with_workers;
  const PlannerInput input{.layers = resolved.layers,
                           .batch_size = resolved.batch_size,
                           .epoch = {},
                           .worker_addresses = {},
                           .server_addresses = {},
                           .sync = resolved.sync,
                           .norm_scope = resolved.norm_scope,
                           .calibration = std::nullopt};
  for (const PlannerLayer& layer : resolved.layers) description.layers.push_back(layer.name);
  description.why_no_calibration = [layers = resolved.layers, sync = resolved.sync](
                                       const JobDescription::Addresses& workers,
                                       const JobDescription::Addresses& servers) {
    return why_no_calibration(layers, sync, workers, servers);
  };
  description.make_plan = [input](JobDescription::PlanRequest wanted) {
    PlannerInput all = input;
    all.epoch = wanted.epoch;
    all.batch_size = wanted.batch_size;
    all.worker_addresses = std::move(wanted.workers);
    all.server_addresses = std::move(wanted.servers);
    all.worker_machines = std::move(wanted.worker_machines);
    all.server_machines = std::move(wanted.server_machines);
    all.calibration = std::move(wanted.calibration);
    if (wanted.keep) all.sync.plan = plan_pin_to_json(*wanted.keep);
    all.leaders = std::move(wanted.leaders);
    return make_plan(all);
  };
  description.consider_replan = [input](const Plan& in_force, const std::vector<LayerTimes>& times,
                                        ReplanState state) {
    PlannerInput all = input;
    all.epoch = in_force.epoch;
    all.batch_size = in_force.batch_size;
    all.worker_addresses = in_force.worker_addresses;
    all.server_addresses = in_force.server_addresses;
    all.calibration = in_force.calibration;
    all.leaders = in_force.leaders;
    return consider_replan(all, in_force, times, state);
  };
  return description;
}

void Cluster::install_job(std::unique_ptr<JobRun> job, const v1::SubmitRequest& request,
                          std::shared_ptr<RunFiles> directory,
                          std::optional<MetricsProgress> earlier) {
  std::unique_ptr<JobRun> old_job;  // both die after the lock is released
  std::shared_ptr<RunFiles> old_directory;
  const std::lock_guard<std::mutex> lock(mutex_);
  set_log_job(job->description().id, job->epoch().value());
  note(EventKind::kJob,
       absl::StrCat("job ", job->description().id, " was submitted; its files go to ",
                    directory->path().string()));
  old_job = std::exchange(job_, std::move(job));
  if (old_job) counts_.jobs += old_job->counts();
  old_directory = std::exchange(directory_, std::move(directory));
  submitted_ = request;
  recorded_.reset();
  source_ = job_->description().source;
  resumed_epoch_.reset();
  traffic_.reset();
  curve_ = earlier ? std::move(earlier->curve) : LossCurve();
  counted_iterations_ = job_->first_iteration();
  files_closing_ = false;
  files_closed_ = false;
  for (auto& [asker, follower] : followers_) follower.end_told = false;
  lines_refused_.clear();
  record_refused_.clear();
  lines_lost_.clear();
  if (earlier && source_ && earlier->next_iteration < snapshot_iteration(*source_)) {
    note(EventKind::kAlarm,
         absl::StrCat(directory_->path().string(), "/metrics.jsonl has nothing of iterations ",
                      earlier->next_iteration, " to ", snapshot_iteration(*source_) - 1,
                      ", which checkpoint ", snapshot_name(*source_),
                      " has behind it: their lines were lost, or are of another run"));
  }
  directory_->write_file("job.json", submitted_.job_json());
  if (shutting_down_) {
    apply(job_->fail("the coordinator is stopping", clock_->now()));
  } else {
    apply(job_->on_members(membership_.nodes(), clock_->now()));
  }
}

// ---- status ----

absl::StatusOr<v1::GetStatusResponse> Cluster::status(const v1::GetStatusRequest& /*request*/,
                                                      const std::string& asker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Nanoseconds now = clock_->now();
  forget_followers(now);
  const bool end_told = job_ != nullptr && job_->ended() && files_closed_;
  followers_[asker] = {.asked = now, .end_told = end_told};
  if (end_told) follower_told_.notify_all();
  return status_now();
}

/// Those who have asked no more for so long do not wait for an answer.
void Cluster::forget_followers(Nanoseconds now) {
  std::erase_if(followers_,
                [&](const auto& entry) { return now - entry.second.asked >= options_.last_words; });
}

v1::GetStatusResponse Cluster::status_now() const {
  v1::GetStatusResponse out = job_ ? status_without_job() : last_job_;
  if (job_) fill_job(out);
  if (job_ && job_->ended() && !files_closed_) {
    // Whoever waits for the end reads the files next: they must be whole by then.
    out.set_state("running");
    out.set_message("the last files are being written");
  }
  fill_nodes(out);
  if (job_ && job_->plan()) fill_layers(out);
  fill_refused(out);
  fill_own_counters(out);
  out.set_metrics_address(metrics_address_);
  return out;
}

/// Of a job that has ended: what the next process still tells of it.
v1::GetStatusResponse Cluster::outcome() const {
  v1::GetStatusResponse out = status_without_job();
  fill_job(out);
  return out;
}

void Cluster::fill_job(v1::GetStatusResponse& out) const {
  const JobDescription& description = job_->description();
  const JobProgress progress = job_->progress(clock_->now());
  out.set_job(description.name);
  out.set_job_id(description.id);
  out.set_state(job_state_name(job_state()));
  out.set_message(progress.message);
  if (!lines_lost_.empty()) {
    out.set_message(absl::StrCat(
        progress.message, progress.message.empty() ? "the model is stored, but " : "; ",
        "the last lines of the run directory could not be written: ", lines_lost_));
  }
  if (!model_refused_.empty() && job_->state() == JobState::kRunning) {
    out.set_message(absl::StrCat(model_refused_, "; worker 0 keeps it and comes again"));
  }
  const std::string& refused = lines_refused_.empty() ? record_refused_ : lines_refused_;
  if (!refused.empty() && job_->state() == JobState::kRunning) out.set_message(refused);
  if (membership_.isolated_since() && !job_->ended()) {
    out.set_message("no node is heard just now: training may be further than this tells");
  }
  out.set_iteration(static_cast<std::uint64_t>(progress.completed));
  out.set_iterations(static_cast<std::uint64_t>(description.iterations));
  out.set_epoch(job_->epoch().value());
  out.set_unsaved(job_->ended_unsaved());
  if (progress.loss) out.set_loss(*progress.loss);
  out.set_images_per_s(progress.images_per_s);
  if (progress.test) {
    out.set_test_loss(progress.test->loss);
    out.set_test_accuracy(progress.test->accuracy);
    out.set_tested_iteration(static_cast<std::uint64_t>(progress.test->iteration));
  }
  out.set_training_seconds(progress.training_seconds);
  out.set_iterated_seconds(progress.iterated_seconds);
  out.set_training_from(static_cast<std::uint64_t>(progress.training_from));
  out.set_run_directory(directory_->path().string());
  out.set_plan_basis(job_->plan_basis());
  out.set_recommendation(job_->recommendation());
  if (job_->plan() && job_->plan()->prediction) {
    out.set_predicted_iteration_seconds(job_->plan()->prediction->iteration_s);
  }
  if (progress.images_per_s > 0.0) {
    out.set_measured_iteration_seconds(static_cast<double>(job_->workers().size()) *
                                       static_cast<double>(job_->batch_size()) /
                                       progress.images_per_s);
  }
}

/// A job whose files lack their last lines has not done all that it should.
JobState Cluster::job_state() const {
  return lines_lost_.empty() ? job_->state() : JobState::kFailed;
}

/// Of a job that is over the page shows what moved last.
Nanoseconds Cluster::traffic_until() const {
  const Nanoseconds now = clock_->now();
  return job_ ? job_->ended_at().value_or(now) : now;
}

void Cluster::fill_nodes(v1::GetStatusResponse& out) const {
  const auto fill = [&](const NodeInfo& node, int rank, const std::string& state) {
    v1::NodeStatus* status = node.role == NodeRole::kWorker ? out.add_workers() : out.add_servers();
    status->set_rank(rank);
    status->set_address(node.address);
    status->set_device(node.device);
    status->set_state(state);
    status->set_metrics_address(node.metrics_address);
    status->set_node_id(node.id.value());
    const WorkerRates rates =
        traffic_ ? traffic_->worker_rates(node.id, traffic_until()) : WorkerRates{};
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    const auto shares = rates.shares.value_or(
        WorkerRates::Shares{.compute = kUnknown, .stall = kUnknown, .data = kUnknown});
    status->set_compute_share(shares.compute);
    status->set_stall_share(shares.stall);
    status->set_data_stall_share(shares.data);
    status->set_corrupt_samples(rates.corrupt_samples);
    status->set_images_per_s(rates.passes_per_s && job_
                                 ? *rates.passes_per_s * static_cast<double>(job_->batch_size())
                                 : kUnknown);
    // A participant is as its job's record has it, which does not know the machine.
    if (const NodeInfo* member = membership_.find(node.id)) status->set_machine(member->machine);
    if (const v1::CountersStatus* counters = counters_.of(node.id)) {
      *status->mutable_counters() = *counters;
    }
    if (const std::optional<LoadRates> load = loads_.rates(node.id)) {
      v1::LoadStatus& told = *status->mutable_load();
      told.set_machine(load->machine);
      told.set_cores(load->cores);
      told.set_cores_used(load->cores_used);
      told.set_cores_wanted(load->cores_wanted);
      told.set_disk_share(load->disk_share);
      told.set_disk_bytes_per_s(load->disk_bytes_per_s);
      told.set_disk_waiting(load->disk_waiting);
    }
  };
  std::vector<NodeId> listed;
  if (job_) {
    for (const auto* group : {&job_->workers(), &job_->servers()}) {
      for (const Participant& p : *group) {
        const bool here = membership_.find(p.node.id) != nullptr;
        if (!here && job_->state() == JobState::kDone) continue;
        std::string state = participant_state_name(p.state);
        if (!here) state = "lost";
        const bool silent = link_of(p.node.id) == nullptr || vouched_for_.contains(p.node.id);
        if (here && silent) state = "away";
        if (here && job_->ended()) state = "idle";
        fill(p.node, static_cast<int>(p.index), state);
        listed.push_back(p.node.id);
      }
    }
  }
  for (const NodeInfo& node : membership_.nodes()) {
    if (std::find(listed.begin(), listed.end(), node.id) == listed.end()) fill(node, -1, "idle");
  }
}

void Cluster::fill_layers(v1::GetStatusResponse& out) const {
  std::vector<std::map<std::uint32_t, std::uint32_t>> chunks(job_->plan()->layers.size());
  for (const PlanChunk& chunk : job_->plan()->chunks) {
    ++chunks[chunk.layer.value()][chunk.server.value()];
  }
  std::uint32_t index = 0;
  for (const PlanLayer& layer : job_->plan()->layers) {
    const LayerRates rates =
        traffic_ ? traffic_->rates(LayerIndex(index), traffic_until()) : LayerRates{};
    v1::LayerStatus* status = out.add_layers();
    status->set_name(layer.name);
    status->set_scheme(std::string(scheme_name(layer.scheme)));
    status->set_parameters(layer.parameters);
    status->set_sent_bytes_per_s(rates.sent_bytes_per_s);
    status->set_received_bytes_per_s(rates.received_bytes_per_s);
    status->set_stall_share(rates.stall_share);
    status->set_reason(layer.reason);
    status->mutable_chunks()->insert(chunks[index].begin(), chunks[index].end());
    const auto fill = [](v1::LayerSeconds* seconds, double forward, double backward, double sync) {
      seconds->set_forward(forward);
      seconds->set_backward(backward);
      seconds->set_sync(sync);
    };
    if (layer.prediction && job_->plan()->calibration) {
      const LayerTimes& times = job_->plan()->calibration->layers[index];
      fill(status->mutable_predicted(), times.forward_s, times.backward_s,
           layer.prediction->sync_s);
    }
    if (rates.measured) {
      fill(status->mutable_measured(), rates.measured->forward_s, rates.measured->backward_s,
           rates.measured->sync_s);
    }
    ++index;
  }
}

void Cluster::fill_own_counters(v1::GetStatusResponse& out) const {
  v1::CoordinatorCounters& own = *out.mutable_counters();
  own.set_heartbeat_ms(static_cast<std::uint32_t>(
      std::chrono::duration_cast<Milliseconds>(options_.membership.heartbeat).count()));
  for (const auto& [reason, count] : own_refusals_) {
    v1::RefusedCount* refused = own.add_refused_messages();
    refused->set_reason(reason);
    refused->set_count(count);
  }
  own.set_checkpoints_failed(counts_.jobs.checkpoints_failed);
  if (!job_) return;
  own.set_checkpoints_failed(own.checkpoints_failed() + job_->counts().checkpoints_failed);
  own.set_checkpoint_every(static_cast<std::uint64_t>(job_->description().checkpoint_every));
  if (const CheckpointManifest* newest = job_->checkpoints().newest_usable()) {
    own.set_checkpoint_iteration(static_cast<std::uint64_t>(newest->iteration()));
    own.set_checkpoint_bytes(static_cast<std::uint64_t>(newest->bytes));
  }
}

void Cluster::fill_refused(v1::GetStatusResponse& out) const {
  std::map<std::string, std::uint64_t> all = own_refusals_;
  for (const auto& [reason, count] : departed_refusals_) all[reason] += count;
  for (const auto& [node, counts] : node_refusals_) {
    for (const auto& [reason, count] : counts) all[reason] += count;
  }
  for (const auto& [reason, count] : all) {
    v1::RefusedCount* refused = out.add_refused();
    refused->set_reason(reason);
    refused->set_count(count);
  }
}

}  // namespace poseidon
