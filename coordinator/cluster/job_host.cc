#include "coordinator/cluster/job_host.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/restore_source.h"
#include "common/daemon/log.h"
#include "common/plan/plan_proto.h"
#include "common/threads/mutex.h"
#include "coordinator/members/admission.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// Empty: no event.
std::optional<EventKind> event_kind(LogLine::Kind kind) {
  switch (kind) {
    case LogLine::Kind::kJob:
      return EventKind::kJob;
    case LogLine::Kind::kRecovery:
      return EventKind::kRecovery;
    case LogLine::Kind::kAlarm:
      return EventKind::kAlarm;
    case LogLine::Kind::kRoutine:
      return std::nullopt;
  }
  return std::nullopt;
}

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace

JobHost::JobHost(ClusterContext& context, const JobSurroundings& parts)
    : context_(context),
      membership_(parts.membership),
      streams_(parts.streams),
      watch_(parts.watch),
      targets_(parts.targets),
      clients_(parts.clients),
      traces_(parts.traces),
      checkpoints_(parts.checkpoints),
      output_(parts.output),
      lost_time_(context.options.membership.lease) {}

bool JobHost::wait_until(Mutex& mutex, Nanoseconds timeout, const std::function<bool()>& holds) {
  return changed_.wait_for(mutex, timeout, holds);
}

void JobHost::wait_for_nodes(Mutex& mutex, Nanoseconds timeout, Nanoseconds lease,
                             const std::function<bool()>& holds) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  const auto left = [until] { return until - std::chrono::steady_clock::now(); };
  while (left() > Nanoseconds::zero() && !holds()) {
    const bool has_nodes = changed_.wait_for(mutex, std::min<Nanoseconds>(lease, left()),
                                             [&] { return holds() || has_streams(); });
    if (!has_nodes) return;
    changed_.wait_for(mutex, left(), [&] { return holds() || !has_streams(); });
  }
}

/// Of nodes with a part in the job.
bool JobHost::has_streams() const {
  const std::vector<NodeId> nodes = this->nodes();
  return std::any_of(nodes.begin(), nodes.end(),
                     [this](NodeId node) { return streams_.has_stream(node); });
}

void JobHost::resume(std::unique_ptr<JobRun> job, const v1::SubmitRequest& request,
                     const DurableJob& record, std::shared_ptr<RunFiles> directory, LossCurve curve,
                     Iteration completed) {
  job_ = std::move(job);
  output_.begin(std::move(directory));
  watch_.begin_job(std::move(curve), completed);
  record_.resume(request, record, job_->epoch());
}

void JobHost::on_run_closed() {
  for (const SendStop& stop : output_.take_stops()) send_stop(stop);
  output_.set_closed();
}

v1::CoordinatorMessage JobHost::calibrate_message(const CalibrationTask& task) const {
  v1::CoordinatorMessage message;
  v1::Calibrate& calibrate = *message.mutable_calibrate();
  calibrate.set_epoch(job_->epoch().value());
  calibrate.set_step(task.step);
  const auto workers = static_cast<std::uint32_t>(job_->view().roster.workers.size());
  const auto max_ms =
      static_cast<std::uint32_t>(std::chrono::duration_cast<Milliseconds>(task.max_time).count());
  switch (task.kind) {
    case CalibrationTask::Kind::kCompute:
      calibrate.mutable_compute()->set_job_json(job_->view().run.elastic.job_json);
      calibrate.mutable_compute()->set_workers(workers);
      calibrate.mutable_compute()->set_max_ms(max_ms);
      break;
    case CalibrationTask::Kind::kSums:
      calibrate.mutable_sums()->set_job_json(job_->view().run.elastic.job_json);
      calibrate.mutable_sums()->set_workers(workers);
      calibrate.mutable_sums()->set_max_ms(max_ms);
      break;
    case CalibrationTask::Kind::kLink:
      calibrate.mutable_link()->set_peer_address(task.peer_address);
      calibrate.mutable_link()->set_max_bytes(task.max_bytes);
      calibrate.mutable_link()->set_max_ms(max_ms);
      break;
  }
  return message;
}

void JobHost::apply_one(const JobAction& action) {
  const Epoch epoch = job_->epoch();
  std::visit(
      Overloaded{
          [&](const SendAssignment& a) { send_assignment(a); },
          [&](const SendCalibrate& a) { streams_.send(a.task.node, calibrate_message(a.task)); },
          [&](const SendStart& a) {
            v1::CoordinatorMessage message;
            message.mutable_start()->set_epoch(epoch.value());
            streams_.send(a.node, message);
          },
          [&](const SendStop& a) {
            if (a.succeeded) {
              output_.stop_after_closing(a);
            } else {
              send_stop(a);
            }
          },
          [&](const SendHalt& a) {
            v1::CoordinatorMessage message;
            message.mutable_halt()->set_epoch(epoch.value());
            streams_.send(a.node, message);
          },
          [&](const SendSave& a) { send_save(a); },
          [&](const TakeEpoch&) { take_epoch(); },
          [&](const RollBackMetrics& a) {
            watch_.roll_back(a.iteration);
            output_.files().roll_back(a.iteration);
          },
          [&](const AppendMetrics& a) {
            watch_.add_line(a.line);
            output_.files().append_line(a.line, a.reaches);
          },
          [&](const KeepPlans& a) { keep_plans(a.contents); },
          [&](const WriteFile& a) { output_.files().write_file(a.name, a.contents); },
          [&](const CountRefusal& a) { watch_.refuse(a.refusal, a.text); },
          [&](const LogLine& a) {
            if (const auto kind = event_kind(a.kind)) {
              watch_.note(*kind, a.text);
            } else {
              spdlog::info("{}", one_line(a.text));
            }
          },
          [&](const ForgetParts& a) { checkpoints_.send_forget(a); },
          [&](const WriteManifest& a) {
            // A checkpoint that the lines on disk do not reach is not gone back to. Not
            // waited for: this disk may be another one's.
            output_.files().sync();
            checkpoints_.write(a.manifest);
          },
          [&](const RemoveManifest& a) { checkpoints_.remove(a.manifest); },
          [&](const CheckpointLog& a) {
            watch_.note(a.alarm ? EventKind::kAlarm : EventKind::kCheckpoint, a.text);
          },
      },
      action);
}

void JobHost::send_assignment(const SendAssignment& assignment) {
  checkpoints_.on_epoch_begun(job_->epoch());
  const JobView view = job_->view();
  const Plan& plan = *view.run.plan;
  v1::CoordinatorMessage message;
  v1::Assignment& assign = *message.mutable_assign();
  *assign.mutable_plan() = plan_to_message(plan);
  assign.set_job_json(view.run.elastic.job_json);
  assign.set_index(assignment.index);
  assign.set_job_id(job_->description().id);
  const NodeInfo* node = membership_.find(assignment.node);
  if (node == nullptr) return;  // it has left, which the job is told, too
  const bool is_server = node->role == NodeRole::kServer;
  *assign.mutable_proofs() =
      is_server ? proofs_.for_server(plan.epoch, plan.workers(), plan.servers(), assignment.index)
                : proofs_.for_worker(plan.epoch, plan.workers(), plan.servers(), assignment.index);
  // Epochs that are over have no checkpoints in progress: their incomplete parts are removed.
  if (is_server) checkpoints_.send_keep(*node, active_epoch());
  if (const CheckpointManifest* source = view.source.manifest()) {
    *assign.mutable_restore() = restore_to_message(*source, view.source.addresses());
  }
  streams_.send(assignment.node, message);
}

void JobHost::send_save(const SendSave& save) {
  v1::CoordinatorMessage message;
  v1::SaveCheckpoint& out = *message.mutable_save_checkpoint();
  out.set_epoch(job_->epoch().value());
  out.set_iteration(static_cast<std::uint64_t>(save.iteration));
  out.set_held(save.held);
  for (const WorkerRank rank : save.lost) out.add_lost_ranks(rank.value());
  streams_.send(save.node, message);
}

void JobHost::take_epoch() {
  context_.disk.background->enqueue([this, id = job_->description().id] {
    const absl::StatusOr<std::uint64_t> epoch = context_.state->next_epoch();
    MutexLock lock(context_.mutex);
    extend_deadlines(context_.now());
    if (is_job(id)) apply(job_->on_epoch(epoch, context_.now()));
  });
}

void JobHost::keep_plans(const std::string& contents) {
  context_.disk.background->enqueue([this, key = job_->description().plans.key, contents] {
    const absl::Status kept = context_.state->store_plans(key, contents);
    if (kept.ok()) return;
    spdlog::warn("the plan is not kept for the next run of this job: {}",
                 one_line(std::string(kept.message())));
  });
}

void JobHost::send_stop(const SendStop& stop) {
  v1::CoordinatorMessage message;
  message.mutable_stop()->set_epoch(job_->epoch().value());
  message.mutable_stop()->set_succeeded(stop.succeeded);
  message.mutable_stop()->set_reason(stop.reason);
  streams_.send(stop.node, message);
}

void JobHost::apply(const JobActions& actions) {
  // Their log lines belong to this job, including its first and last.
  if (job_) set_log_job(job_->description().id, job_->epoch().value());
  for (const JobAction& action : actions) apply_one(action);
  after_actions();
}

void JobHost::after_actions() {
  // Dropping a node may fail the job, whose actions come back here: the list is taken first.
  for (const NodeId node : streams_.take_undeliverable()) {
    const auto gone =
        membership_.leave(node, "does not take what the coordinator sends", context_.now());
    if (gone)
      depart(*gone, absl::AbortedError("this node does not take what the coordinator sends"));
  }
  if (!job_) return;
  changed_.notify_all();
  set_log_job(job_->ended() ? "" : job_->description().id, job_->epoch().value());
  if (!watch_.has_traffic() && job_->view().run.plan)
    watch_.begin_traffic(job_->view().run.plan->layers.size());
  const auto record =
      record_.update(*job_, output_.files().path().string(), context_.clock->unix_time().count());
  if (record) {
    output_.files().write_file(std::filesystem::absolute(context_.state->job_file()).string(),
                               *record);
  }
  watch_.count_iterations(job_->progress(context_.now()).completed);
  if (!job_->ended()) return;
  leave_stopped_run();
  output_.close_when_over();
}

/// Once. The files stay open until the model is there or cannot be made.
void JobHost::leave_stopped_run() {
  const std::optional<CheckpointManifest>& from = job_->view().ending.left_at();
  if (!from || context_.disk.leave_stopped_run == nullptr || output_.has_asked_for_model()) return;
  StoppedRun run{.snapshot = from->snapshot,
                 .job_id = job_->description().id,
                 .job_json = from->job_json,
                 .iterations = job_->iterations().value_or(0)};
  std::vector<std::string> addresses;
  const std::vector<NodeInfo> nodes = membership_.nodes();
  for (const std::string& store : from->stores) addresses.push_back(store_address(nodes, store));
  const std::string missing = missing_stores(*from, [&nodes](const std::string& identity) {
    return !store_address(nodes, identity).empty();
  });
  if (missing.empty()) {
    run.source = restore_to_message(*from, addresses);
  } else {
    run.source = absl::UnavailableError(absl::StrCat(missing, ", is not connected"));
  }
  output_.await_model();
  context_.disk.background->enqueue([this, run = std::move(run), files = output_.shared()] {
    const absl::Status status = context_.disk.leave_stopped_run(run, files->path());
    MutexLock lock(context_.mutex);
    if (!is_job(run.job_id)) return;
    if (!status.ok()) {
      watch_.note(EventKind::kAlarm, absl::StrCat("job ", run.job_id, ": ", status.message()));
    }
    output_.on_model_left(status);
    output_.close_when_over();
  });
}

void JobHost::depart(const Departure& departure, const absl::Status& status, DepartureKind kind) {
  const NodeId id = departure.node.id;
  watch_.note(kind == DepartureKind::kLost ? EventKind::kLoss : EventKind::kLeave,
              absl::StrCat(node_text(departure.node), " (node ", id.value(), ") is gone: it ",
                           departure.reason));
  streams_.close_node(id, status);
  watch_.on_departure(departure.node, kind);
  traces_.on_gone(id, absl::StrCat("is gone (it ", departure.reason, ")"));
  if (job_) apply(job_->on_departure(departure, context_.now()));
  members_changed();
}

void JobHost::members_changed() {
  targets_.update(membership_.nodes());
  extend_deadlines(context_.now());  // a newcomer may have ended the isolation
  if (job_ && !job_->ended()) apply(job_->on_members(candidates(), context_.now()));
}

/// Members that may serve the job.
std::vector<NodeInfo> JobHost::candidates() const {
  std::vector<NodeInfo> nodes = membership_.nodes();
  const JobDescription& job = job_->description();
  const std::string serves = job.programs.train_it ? job.id : "";
  std::erase_if(nodes, [&serves](const NodeInfo& node) {
    return node.role == NodeRole::kWorker && node.job != serves;
  });
  return nodes;
}

bool JobHost::extend_deadlines(Nanoseconds now) {
  const Nanoseconds lost = lost_time_.look(now, membership_.isolated_since());
  if (lost > Nanoseconds::zero() && job_ && !job_->ended()) job_->extend_deadlines(lost, now);
  return !lost_time_.is_cut_off();
}

std::vector<NodeId> JobHost::nodes() const {
  std::vector<NodeId> nodes;
  if (!job_ || job_->ended()) return nodes;
  for (const auto* group : job_->view().roster.groups()) {
    for (const Participant& p : *group) {
      if (p.state != ParticipantState::kLost) nodes.push_back(p.node.id);
    }
  }
  return nodes;
}

std::optional<Epoch> JobHost::active_epoch() const {
  if (!job_ || job_->ended()) return std::nullopt;
  return job_->epoch();
}

void JobHost::on_manifest_written(const CheckpointManifest& manifest, const absl::Status& status) {
  extend_deadlines(context_.now());
  if (is_job(manifest.job_id)) {
    apply(job_->on_manifest_written(manifest.snapshot, status, context_.now()));
  }
}

void JobHost::on_manifest_removed(const CheckpointManifest& manifest, const absl::Status& status) {
  const SnapshotId snapshot = manifest.snapshot;
  // An ended job does not remove what it had given up before.
  const bool is_known = is_job(manifest.job_id) &&
                        (!job_->ended() || job_->view().checkpoints.committed().contains(snapshot));
  if (is_known) {
    apply(job_->on_manifest_removed(snapshot, status));
  } else if (status.ok()) {
    checkpoints_.send_forget({.snapshot = snapshot, .stores = manifest.stores});
  } else {
    watch_.note(EventKind::kAlarm, absl::StrCat("checkpoint ", snapshot_name(snapshot),
                                                " could not be removed: ", status.message()));
  }
  changed_.notify_all();
}

std::string JobHost::text() const {
  const JobDescription& d = job_->description();
  return absl::StrFormat("job %s is %s (%d of %d iterations)", d.id, job_state_name(state()),
                         job_->progress(context_.now()).completed, d.iterations);
}

JobState JobHost::state() const {
  return output_.lines_lost().empty() ? job_->state() : JobState::kFailed;
}

void JobHost::install(std::unique_ptr<JobRun> job, const v1::SubmitRequest& request,
                      std::shared_ptr<RunFiles> directory, std::optional<MetricsProgress> earlier) {
  std::unique_ptr<JobRun> old_job;  // both are destroyed after the lock is released
  std::shared_ptr<RunFiles> old_directory;
  MutexLock lock(context_.mutex);
  set_log_job(job->description().id, job->epoch().value());
  watch_.note(EventKind::kJob,
              absl::StrCat("job ", job->description().id, " was submitted; its files go to ",
                           directory->path().string()));
  old_job = std::exchange(job_, std::move(job));
  if (old_job) watch_.count_job(old_job->counts());
  old_directory = output_.begin(std::move(directory));
  record_.begin(request, job_->description().source);
  watch_.begin_job(earlier ? std::move(earlier->curve) : LossCurve(),
                   job_->view().run.first_iteration);
  clients_.on_new_job();
  const std::optional<SnapshotId> source = record_.source();
  if (earlier && source && earlier->next_iteration < snapshot_iteration(*source)) {
    watch_.note(
        EventKind::kAlarm,
        absl::StrCat(output_.files().path().string(), "/metrics.jsonl has no lines of iterations ",
                     earlier->next_iteration, " to ", snapshot_iteration(*source) - 1,
                     ", which checkpoint ", snapshot_name(*source),
                     " includes: the lines were lost, or are of another run"));
  }
  output_.files().write_file("job.json", request.job_json());
  if (context_.shutting_down) {
    apply(job_->fail("the coordinator is stopping", context_.now()));
  } else {
    apply(job_->on_members(candidates(), context_.now()));
  }
}

}  // namespace poseidon
