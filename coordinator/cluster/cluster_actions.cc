// Cluster's part that does what a job decides (JobAction), and says so to its nodes.

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/daemon/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/members/admission.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// Nothing: it is no event.
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

bool Cluster::send(NodeId node, const v1::CoordinatorMessage& message) {
  NodeLink* link = link_of(node);
  if (link == nullptr) return false;
  if (link->send(message)) return true;
  undeliverable_.push_back(node);
  return false;
}

v1::CoordinatorMessage Cluster::calibrate_message(const CalibrationTask& task) const {
  v1::CoordinatorMessage message;
  v1::Calibrate& calibrate = *message.mutable_calibrate();
  calibrate.set_epoch(job_->epoch().value());
  calibrate.set_step(task.step);
  const auto workers = static_cast<std::uint32_t>(job_->workers().size());
  const auto max_ms =
      static_cast<std::uint32_t>(std::chrono::duration_cast<Milliseconds>(task.max_time).count());
  switch (task.kind) {
    case CalibrationTask::Kind::kCompute:
      calibrate.mutable_compute()->set_job_json(job_->job_json());
      calibrate.mutable_compute()->set_workers(workers);
      calibrate.mutable_compute()->set_max_ms(max_ms);
      break;
    case CalibrationTask::Kind::kSums:
      calibrate.mutable_sums()->set_job_json(job_->job_json());
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

void Cluster::apply_one(const JobAction& action) {
  const Epoch epoch = job_->epoch();
  std::visit(Overloaded{
                 [&](const SendAssignment& a) { send_assignment(a); },
                 [&](const SendCalibrate& a) { send(a.task.node, calibrate_message(a.task)); },
                 [&](const SendStart& a) {
                   v1::CoordinatorMessage message;
                   message.mutable_start()->set_epoch(epoch.value());
                   send(a.node, message);
                 },
                 [&](const SendStop& a) {
                   if (a.succeeded) {
                     stops_after_files_.push_back(a);
                   } else {
                     send_stop(a);
                   }
                 },
                 [&](const SendHalt& a) {
                   v1::CoordinatorMessage message;
                   message.mutable_halt()->set_epoch(epoch.value());
                   send(a.node, message);
                 },
                 [&](const SendSave& a) { send_save(a); },
                 [&](const TakeEpoch&) { take_epoch(); },
                 [&](const RollBackMetrics& a) {
                   curve_.roll_back(a.iteration);
                   directory_->roll_back(a.iteration);
                 },
                 [&](const AppendMetrics& a) {
                   if (const auto line = parse_metrics_line(a.line)) curve_.add(*line);
                   directory_->append_line(a.line, a.reaches);
                 },
                 [&](const WriteFile& a) { directory_->write_file(a.name, a.contents); },
                 [&](const CountRefusal& a) { refuse(a.refusal, a.text); },
                 [&](const LogLine& a) {
                   if (const auto kind = event_kind(a.kind)) {
                     note(*kind, a.text);
                   } else {
                     spdlog::info("{}", one_line(a.text));
                   }
                 },
                 [&](const ForgetParts& a) { forget_parts(a); },
                 [&](const WriteManifest& a) { write_manifest(a); },
                 [&](const RemoveManifest& a) { remove_manifest(a.manifest); },
                 [&](const CheckpointLog& a) {
                   note(a.alarm ? EventKind::kAlarm : EventKind::kCheckpoint, a.text);
                 },
             },
             action);
}

void Cluster::send_stop(const SendStop& stop) {
  v1::CoordinatorMessage message;
  message.mutable_stop()->set_epoch(job_->epoch().value());
  message.mutable_stop()->set_succeeded(stop.succeeded);
  message.mutable_stop()->set_reason(stop.reason);
  send(stop.node, message);
}

void Cluster::apply(const JobActions& actions) {
  // What they log is of this job, be it its first line or its last.
  if (job_) set_log_job(job_->description().id, job_->epoch().value());
  for (const JobAction& action : actions) apply_one(action);
  after_actions();
}

void Cluster::after_actions() {
  // Dropping a node may fail the job, whose actions come back here: the list is taken first.
  for (const NodeId node : std::exchange(undeliverable_, {})) {
    const auto gone =
        membership_.leave(node, "does not take what the coordinator sends", clock_->now());
    if (gone)
      depart(*gone, absl::AbortedError("this node does not take what the coordinator sends"));
  }
  if (!job_) return;
  job_changed_.notify_all();
  set_log_job(job_->ended() ? "" : job_->description().id, job_->epoch().value());
  if (!traffic_ && job_->plan()) {
    traffic_ = std::make_unique<TrafficMonitor>(job_->plan()->layers.size());
  }
  record_job();
  const JobProgress progress = job_->progress(clock_->now());
  if (progress.completed > counted_iterations_) {
    counts_.iterations += static_cast<std::uint64_t>(progress.completed - counted_iterations_);
  }
  counted_iterations_ = progress.completed;  // less than before where some are made again
  if (job_->ended() && !files_closing_) {
    files_closing_ = true;
    directory_->close(RunEnd::kOver);
  }
}

}  // namespace poseidon
