#include "coordinator/cluster/submissions.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/file_io.h"
#include "common/threads/mutex.h"
#include "coordinator/members/admission.h"
#include "coordinator/planning/calibrate.h"
#include "coordinator/planning/jobs/declared_job.h"
#include "coordinator/planning/node_counts.h"
#include "coordinator/planning/planner.h"
#include "coordinator/records/durable_job.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

constexpr std::uint64_t kMaxRunJobFileBytes = 64 << 20;

/// Whether `path` is `root` or lies below it, once the symbolic links on the way are followed.
bool is_within(const std::filesystem::path& path, const std::filesystem::path& root) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::weakly_canonical(path, error);
  if (error) return false;  // a loop of links, say
  const std::filesystem::path real_root = std::filesystem::weakly_canonical(root, error);
  if (error) return false;
  return std::mismatch(real_root.begin(), real_root.end(), real.begin(), real.end()).first ==
         real_root.end();
}

/// A run needs its own folder below `root` ("": one is created), which must not be a folder of the
/// coordinator's state.
absl::Status check_run_path(const std::filesystem::path& path, const std::filesystem::path& root,
                            const std::filesystem::path& state) {
  if (path.empty()) return absl::OkStatus();
  if (path.native().find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("the run directory's path has a zero byte in it");
  }
  if (!path.is_absolute()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the run directory ", path.string(), " must be an absolute path"));
  }
  if (!is_within(path, root)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--run-dir ", path.string(), " is not in ", root.string(),
        ", where this coordinator keeps runs: choose a folder in it, leave --run-dir out, or start "
        "the coordinator with another --run-root"));
  }
  bool is_ours = is_same_folder(path, state);
  for (std::filesystem::path folder = path; !is_ours && folder.has_relative_path();
       folder = folder.parent_path()) {
    is_ours =
        is_same_folder(folder, state / "checkpoints") || is_same_folder(folder, state / "plans");
  }
  if (!is_ours) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--run-dir ", path.string(), ": in ", state.string(),
                   " the coordinator keeps its own state; a run needs a folder of its own"));
}

/// Whether the metrics in a run directory can be those of the source's job, or of an attempt to go
/// on from it with the job of the request: a later job may have taken it.
absl::Status check_still_of_job(const std::filesystem::path& path, const std::string& job_json,
                                const JobDescription& description) {
  const absl::StatusOr<std::string> there = read_file(path / "job.json", kMaxRunJobFileBytes);
  if (absl::IsNotFound(there.status())) return absl::OkStatus();
  POSEIDON_RETURN_IF_ERROR(there.status());
  const auto is_of_source = [&](const CheckpointManifest& manifest) {
    return manifest.snapshot == description.source && manifest.job_json == *there;
  };
  if (*there == job_json || std::ranges::any_of(description.committed, is_of_source)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the run directory ", path.string(),
                   " holds another job's files by now; choose a new one with --run-dir"));
}

/// A run begins by moving an earlier run's model aside, so it cannot begin from either of the two.
absl::Status check_weights_stay(const std::filesystem::path& weights,
                                const std::filesystem::path& run_directory) {
  if (!RunDirectory::moves_as_run_begins(run_directory, weights)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("init.weights: ", weights.string(), " would move when the run in ",
                   run_directory.string(), " begins; choose another --run-dir"));
}

absl::Status check_size(const v1::SubmitRequest& request, const ClusterOptions& options) {
  if (request.job_json().size() > options.max_job_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the job has ", request.job_json().size(),
                                                   " bytes; at most ", options.max_job_bytes));
  }
  const std::size_t max_nodes = options.membership.max_nodes;
  if (request.workers() > max_nodes || request.servers() > max_nodes) {
    return absl::InvalidArgumentError(absl::StrCat("a cluster has at most ", max_nodes, " nodes"));
  }
  return absl::OkStatus();
}

/// A cluster that continues from a checkpoint may have lost a server for good, and the job cannot
/// be changed: then it has fewer copies.
absl::Status check_counts(const v1::SubmitRequest& request, const ResolvedJob& job,
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

}  // namespace

absl::StatusOr<JobDescription> Submissions::describe_again(const v1::SubmitRequest& request,
                                                           bool from_checkpoint) const {
  POSEIDON_ASSIGN_OR_RETURN(const ResolvedJob resolved, resolver_(request.job_json()));
  POSEIDON_RETURN_IF_ERROR(check_counts(request, resolved, from_checkpoint));
  return describe(request, resolved, request.run_directory());
}

absl::Status Submissions::reserve() {
  MutexLock lock(context_.mutex);
  if (context_.shutting_down) return absl::UnavailableError("the coordinator is stopping");
  if (is_under_way_) {
    return absl::FailedPreconditionError(
        "another job is being submitted at this moment: a cluster runs one job at a time");
  }
  if (host_.is_active()) {
    return absl::FailedPreconditionError(absl::StrCat(
        host_.text(), ": a cluster runs one job at a time; submit again when it has ended"));
  }
  is_under_way_ = true;
  return absl::OkStatus();
}

/// `source`: continue from this checkpoint, whose job is in the request.
absl::StatusOr<v1::SubmitResponse> Submissions::submit(const v1::SubmitRequest& request,
                                                       std::optional<SnapshotId> source) {
  POSEIDON_RETURN_IF_ERROR(check_size(request, context_.options));
  // One spelling, so that it cannot be taken for another directory.
  std::filesystem::path path = plain_folder(request.run_directory());
  const std::filesystem::path state = std::filesystem::absolute(context_.state->path());
  const std::filesystem::path& given_root = context_.options.run_root;
  const std::filesystem::path root =
      given_root.empty() ? state / "runs" : std::filesystem::absolute(given_root);
  if (!is_own_directory(source, path)) {
    POSEIDON_RETURN_IF_ERROR(check_run_path(path, root, state));
  }
  POSEIDON_ASSIGN_OR_RETURN(const ResolvedJob resolved, resolver_(request.job_json()));
  POSEIDON_RETURN_IF_ERROR(check_counts(request, resolved, source.has_value()));
  for (const std::string& warning : resolved.warnings) spdlog::warn("{}", warning);

  POSEIDON_RETURN_IF_ERROR(reserve());
  const absl::Cleanup unreserve = [this] {
    MutexLock lock(context_.mutex);
    is_under_way_ = false;
  };
  POSEIDON_ASSIGN_OR_RETURN(const std::uint64_t epoch, context_.state->next_epoch());
  const std::string id = absl::StrCat(file_name(resolved.name), "-", epoch);
  if (path.empty()) path = root / id;
  JobDescription description = describe(request, resolved, path.string());
  description.id = id;
  description.epoch = Epoch(epoch);
  if (source) POSEIDON_RETURN_IF_ERROR(add_source(*source, description));
  const auto begin = description.id == id ? RunDirectory::Begin::kAnew : RunDirectory::Begin::kGoOn;
  if (begin == RunDirectory::Begin::kGoOn) {
    POSEIDON_RETURN_IF_ERROR(check_still_of_job(path, request.job_json(), description));
  }
  if (!source) POSEIDON_RETURN_IF_ERROR(check_weights_stay(resolved.weights, path));
  const DurableJob record{.id = description.id,
                          .job_json = request.job_json(),
                          .run_directory = path.string(),
                          .workers = request.workers(),
                          .servers = request.servers(),
                          .source = source,
                          .running = std::nullopt};
  // The record comes before the first touch of the directory, which may hold a finished run: if
  // this process dies from here on, the next one knows the job, and opens the directory again.
  const auto refused = [this](const absl::Status& why, const char* what) {
    const absl::Status dropped = context_.state->drop_job();
    if (!dropped.ok()) spdlog::error("{}", std::string(dropped.message()));
    return absl::Status(why.code(), absl::StrCat(what, why.message()));
  };
  // The record may exist nevertheless, when only its folder could not be synced.
  if (const absl::Status stored = context_.state->store_job(durable_job_to_json(record));
      !stored.ok()) {
    return refused(stored, "");
  }
  absl::StatusOr<std::shared_ptr<RunFiles>> directory =
      context_.disk.open(path, begin, run_events());
  if (!directory.ok()) return refused(directory.status(), "the run directory (--run-dir): ");
  if ((*directory)->replaced()) {
    spdlog::warn("{} holds an earlier run; its files are replaced", path.string());
  }
  context_.state->drop_outcome();
  v1::SubmitResponse response;
  response.set_job_id(description.id);
  response.set_run_directory(path.string());
  host_.install(
      std::make_unique<JobRun>(context_.options.job, std::move(description), context_.now()),
      request, *std::move(directory), progress_of_earlier(path, begin));
  return response;
}

absl::StatusOr<v1::DeclareResponse> Submissions::declare(const v1::DeclareRequest& request) {
  const v1::SubmitRequest& submit = request.submit();
  POSEIDON_RETURN_IF_ERROR(check_size(submit, context_.options));
  POSEIDON_ASSIGN_OR_RETURN(const ResolvedJob resolved, resolver_(submit.job_json()));
  if (!resolved.is_declared) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", resolved.name,
                     " has a network, which poseidon-worker trains: submit "
                     "it; a program's job declares its layers"));
  }
  if (submit.workers() < 1 || request.rank() > submit.workers()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rank %d of %d workers: give the number of workers, and ranks below it",
                        std::int64_t{request.rank()} - 1, submit.workers()));
  }
  if (auto response = declared_already(submit, resolved.name)) return *std::move(response);
  absl::StatusOr<v1::SubmitResponse> started = this->submit(submit, std::nullopt);
  if (!started.ok()) {
    // Another worker of the same program may have been first.
    if (auto response = declared_already(submit, resolved.name)) return *std::move(response);
    return started.status();
  }
  v1::DeclareResponse response;
  *response.mutable_job() = *std::move(started);
  response.set_is_first(true);
  return response;
}

/// Nothing where no such job is active.
std::optional<absl::StatusOr<v1::DeclareResponse>> Submissions::declared_already(
    const v1::SubmitRequest& request, const std::string& name) const {
  MutexLock lock(context_.mutex);
  if (is_under_way_) {
    return absl::UnavailableError("a job is being submitted at this moment; try again");
  }
  if (!host_.is_active()) return std::nullopt;
  const JobDescription& job = host_.job()->description();
  if (!job.programs.train_it || job.name != name) return std::nullopt;
  const std::string difference = declared_difference(
      {.json = request.job_json(), .workers = request.workers(), .servers = request.servers()},
      {.json = job.job_json, .workers = job.workers, .servers = job.servers});
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this program is not the one that job ", job.id, " began with: ", difference));
  }
  v1::DeclareResponse response;
  response.mutable_job()->set_job_id(job.id);
  response.mutable_job()->set_run_directory(job.run_directory);
  return response;
}

/// Whether the run that the checkpoint belongs to is in this directory: that run goes on there,
/// also under another --run-root than it began with.
bool Submissions::is_own_directory(std::optional<SnapshotId> source,
                                   const std::filesystem::path& path) const {
  if (!source) return false;
  MutexLock lock(context_.mutex);
  const auto manifest = checkpoints_.catalog().find(snapshot_name(*source));
  return manifest.ok() && is_same_folder((*manifest)->run_directory, path);
}

/// The facts that a job needs of the checkpoint that it continues from. In the run's own directory
/// the job is the same; in another directory it is a branch of it.
absl::Status Submissions::add_source(SnapshotId source, JobDescription& description) {
  if (snapshot_iteration(source) >= description.iterations) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", snapshot_name(source), " is of the end of training: all ",
                     description.iterations,
                     " iterations are done; `poseidon checkpoint export` writes its "
                     "model"));
  }
  MutexLock lock(context_.mutex);
  POSEIDON_ASSIGN_OR_RETURN(const CheckpointManifest* manifest,
                            checkpoints_.catalog().find(snapshot_name(source)));
  if (description.workers > 0 && description.with_workers) {
    const absl::Status possible =
        description.with_workers(manifest->begun_with, description.workers).status();
    if (!possible.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--workers ", description.workers, ": ", possible.message()));
    }
  }
  checkpoints_.keep(source);
  description.source = source;
  if (is_same_folder(manifest->run_directory, description.run_directory)) {
    description.id = manifest->job_id;
    description.committed = checkpoints_.catalog().of_job(manifest->job_id);
  } else {
    description.committed = {*manifest};
  }
  return absl::OkStatus();
}

RunDirectory::Events Submissions::run_events() {
  return {.on_written =
              [this](SnapshotId version) {
                MutexLock lock(context_.mutex);
                output_.on_lines_written();
                if (host_.job() && !context_.ending)
                  host_.apply(host_.job()->on_metrics_written(version));
              },
          .on_trouble =
              [this](const absl::Status& status) {
                MutexLock lock(context_.mutex);
                watch_.note(EventKind::kAlarm, output_.on_lines_refused(status));
              },
          .on_error =
              [this](const absl::Status& status) {
                MutexLock lock(context_.mutex);
                spdlog::error("{}", std::string(status.message()));
                if (host_.job() && host_.job()->ended()) {
                  output_.on_lines_lost(status);
                  watch_.note(EventKind::kAlarm,
                              absl::StrCat("job ", host_.job()->description().id,
                                           " lacks its last lines: ", status.message()));
                } else if (host_.job()) {
                  host_.apply(host_.job()->fail(std::string(status.message()), context_.now()));
                }
              },
          .on_record =
              [this](const absl::Status& status) {
                MutexLock lock(context_.mutex);
                if (status.ok()) {
                  output_.on_record_written();
                  watch_.note(EventKind::kJob,
                              absl::StrCat(context_.state->job_file().string(), " is written"));
                  return;
                }
                watch_.note(EventKind::kAlarm, output_.on_record_refused(status));
              },
          .on_closed = [this] { on_closed(); }};
}

void Submissions::on_closed() {
  std::optional<v1::GetStatusResponse> ended;
  {
    MutexLock lock(context_.mutex);
    if (host_.job() != nullptr && host_.job()->ended()) {
      ended = report_.outcome();
      watch_.count_end(host_.state() == JobState::kDone, host_.job()->view().ending.was_stopped());
    }
  }
  // Only now, with all of its files complete, no later process has to continue it.
  if (ended) {
    const absl::StatusOr<std::string> outcome = outcome_to_json(*ended);
    absl::Status status = outcome.ok() ? context_.state->store_outcome(*outcome) : outcome.status();
    status.Update(context_.state->drop_job());
    if (!status.ok()) spdlog::error("{}", std::string(status.message()));
  }
  MutexLock lock(context_.mutex);
  host_.on_run_closed();
}

/// Without them the job is planned as if it had never run: what cannot be read is no error.
PlanMemory Submissions::earlier_plans(const std::string& key) const {
  if (key.empty()) return {};
  const std::string source = context_.state->plans_file(key).string();
  const absl::StatusOr<std::string> text = context_.state->load_plans(key);
  if (absl::IsNotFound(text.status())) return {};
  absl::StatusOr<PlanMemory> plans =
      text.ok() ? PlanMemory::from_json(*text, source) : text.status();
  if (plans.ok()) return *std::move(plans);
  spdlog::warn("the plans of earlier runs are not used: {}",
               one_line(std::string(plans.status().message())));
  return {};
}

JobDescription Submissions::describe(const v1::SubmitRequest& request, const ResolvedJob& resolved,
                                     const std::string& run_directory) const {
  JobDescription description;
  description.name = resolved.name;
  description.workers = request.workers();
  description.servers = request.servers();
  description.min_workers = resolved.min_workers;
  description.max_workers = resolved.max_workers;
  description.batch_size = resolved.batch_size;
  description.iterations = resolved.iterations;
  description.programs = {.train_it = resolved.is_declared,
                          .end_it = resolved.ends_with_programs,
                          .step = resolved.programs_step};
  description.learning_rate = resolved.learning_rate;
  description.job_json = request.job_json();
  description.run_directory = run_directory;
  description.checkpoints.chunk_bytes = resolved.sync.largest_chunk_bytes();
  description.checkpoints.keep = resolved.keep_checkpoints;
  description.checkpoints.replicas = resolved.replicas;
  description.checkpoints.every = resolved.checkpoint_every;
  description.test_every = resolved.test_every;
  description.replace_timeout = Milliseconds(resolved.replace_timeout_ms);
  description.plans = {.replan = resolved.sync.replan,
                       .key = resolved.plans_key,
                       .earlier = earlier_plans(resolved.plans_key)};
  description.with_workers = resolved.with_workers;
  description.check_model = resolved.check_model;
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
    all.earlier = std::move(wanted.earlier);
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

}  // namespace poseidon
