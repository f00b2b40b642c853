// Cluster's part about coming back: nodes whose stream broke, and the coordinator itself after its
// process died (cluster.cc has the rest).

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/members/admission.h"
#include "coordinator/records/durable_job.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

std::vector<NodeInfo> nodes_of(const std::vector<Participant>& participants) {
  std::vector<NodeInfo> nodes;
  for (const Participant& p : participants) nodes.push_back(p.node);
  return nodes;
}

std::vector<Participant> participants_of(const std::vector<NodeInfo>& nodes,
                                         const std::vector<NodeId>& lost) {
  std::vector<Participant> participants;
  for (const NodeInfo& node : nodes) {
    const bool is_lost = std::find(lost.begin(), lost.end(), node.id) != lost.end();
    participants.push_back(
        {.node = node,
         .index = static_cast<std::uint32_t>(participants.size()),
         .state = is_lost ? ParticipantState::kLost : ParticipantState::kPreparing});
  }
  return participants;
}

/// Whether record and metrics.jsonl are of one job of so many iterations.
absl::Status check_progress(const DurableJob& record, const MetricsProgress& progress,
                            Iteration iterations) {
  if (record.running->first_iteration > iterations) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its epoch began at iteration ", record.running->first_iteration, " of ", iterations));
  }
  if (progress.next_iteration > iterations) {
    return absl::InvalidArgumentError(
        absl::StrCat(record.run_directory, "/metrics.jsonl has iteration ",
                     progress.next_iteration - 1, " of ", iterations));
  }
  return absl::OkStatus();
}

/// As far as record and metrics.jsonl tell; without its age and whether its model is there.
RunningJob running_job(const DurableJob::Running& running, const MetricsProgress& progress,
                       const std::vector<CheckpointManifest>& committed) {
  RunningJob job{.plan = running.plan,
                 .plan_basis = running.plan_basis,
                 .workers = participants_of(running.workers, running.lost),
                 .servers = participants_of(running.servers, running.lost),
                 .first_iteration = running.first_iteration,
                 .begun_with = static_cast<std::uint32_t>(running.begun_with),
                 .samples = static_cast<std::uint64_t>(running.samples),
                 .completed = completed_iterations(running, committed, progress.next_iteration),
                 .loss = progress.loss,
                 .test = std::nullopt,
                 .recovering_from = running.recovering_from,
                 .stopped = running.stopped,
                 .abandoned = running.abandoned,
                 .data = running.data};
  if (progress.tested_iteration) {
    job.test = TestResult{.iteration = *progress.tested_iteration,
                          .loss = progress.test_loss,
                          .accuracy = progress.test_accuracy};
  }
  return job;
}

}  // namespace

// ---- nodes ----

void Cluster::let_come_back(NodeId node, const std::string& reason) {
  if (!membership_.detach(node, reason, clock_->now())) return;
  trace_lost(node, reason);
  spdlog::info("{} (node {}) {}; it has {} ms to come back, and more while the job trains with it",
               node_text(*membership_.find(node)), node.value(), reason,
               std::chrono::duration_cast<Milliseconds>(options_.membership.lease).count());
}

std::vector<NodeId> Cluster::nodes_of_job() const {
  std::vector<NodeId> nodes;
  if (!job_ || job_->ended()) return nodes;
  for (const auto* group : {&job_->workers(), &job_->servers()}) {
    for (const Participant& p : *group) {
      if (p.state != ParticipantState::kLost) nodes.push_back(p.node.id);
    }
  }
  return nodes;
}

v1::CoordinatorMessage Cluster::joined_message(NodeId id, const std::string& note) const {
  const auto milliseconds = [](Nanoseconds time) {
    return static_cast<std::uint32_t>(std::chrono::duration_cast<Milliseconds>(time).count());
  };
  v1::CoordinatorMessage message;
  v1::Joined& joined = *message.mutable_joined();
  joined.set_node_id(id.value());
  joined.set_heartbeat_ms(milliseconds(options_.membership.heartbeat));
  joined.set_lease_ms(milliseconds(options_.membership.lease));
  joined.set_note(note);
  return message;
}

bool Cluster::take_back(NodeLink* link, NodeInfo node, const v1::Resume& resume) {
  node.id = NodeId(resume.node_id());
  const Nanoseconds now = clock_->now();
  if (!job_ || !job_->has_part(node.id) || !membership_.attach(node, now)) return false;
  const auto countable = [](std::uint64_t iteration) {
    return iteration <= static_cast<std::uint64_t>(INT64_MAX) ? static_cast<Iteration>(iteration)
                                                              : Iteration{-1};
  };
  JobActions actions;
  const std::optional<LackingReports> lacks =
      job_->on_back({.node = node.id,
                     .epoch = Epoch(resume.epoch()),
                     .index = resume.index(),
                     .oldest = countable(resume.oldest_iteration()),
                     .next = countable(resume.next_iteration())},
                    actions);
  if (!lacks) return false;
  if (NodeLink* old = link_of(node.id)) {
    old->close(absl::AbortedError("this node has opened another stream"));
    attached_.erase(old);
  }
  attached_[link].node = node.id;
  v1::CoordinatorMessage message = joined_message(node.id, "it keeps its part in the job");
  v1::Resumed& resumed = *message.mutable_joined()->mutable_resumed();
  resumed.set_next_iteration(static_cast<std::uint64_t>(lacks->iteration));
  resumed.set_next_test(static_cast<std::uint64_t>(lacks->test));
  resumed.set_next_checkpoint(static_cast<std::uint64_t>(lacks->checkpoint));
  link->send(message);
  if (node.role == NodeRole::kServer) send_keep(node);
  spdlog::info("{} (node {}) is back, and has its part in job {}", node_text(node), node.id.value(),
               job_->description().id);
  apply(actions);
  return true;
}

/// The process has a part in the job's epoch as far as we know, but is in a later one, or in none:
/// an earlier coordinator ended the epoch, and died before it had written down the next.
bool Cluster::is_beyond_epoch(const NodeInfo& node, const v1::Join& join) const {
  // The epochs that this coordinator has begun it knows.
  if (!job_ || resumed_epoch_ != job_->epoch()) return false;
  if (join.has_resume() && join.resume().epoch() <= job_->epoch().value()) return false;
  for (const auto* group : {&job_->workers(), &job_->servers()}) {
    for (const Participant& p : *group) {
      if (is_same_process(p.node, node) && job_->has_part(p.node.id)) {
        return link_of(p.node.id) == nullptr;
      }
    }
  }
  return false;
}

void Cluster::end_outdated_epoch(const NodeInfo& node, const v1::Join& join) {
  const std::uint64_t epoch = job_->epoch().value();
  const std::string why =
      join.has_resume()
          ? absl::StrCat("is in epoch ", join.resume().epoch(), " already, of which an earlier ",
                         "coordinator had not written down that it followed epoch ", epoch)
          : absl::StrCat("has no part any more in epoch ", epoch, ": an earlier coordinator ended ",
                         "it, and had not written that down");
  spdlog::info("{} {}", node_text(node), why);
  const std::string over = absl::StrCat("had a part in epoch ", epoch, ", which is over");
  const std::vector<NodeId> nodes = nodes_of_job();
  apply(job_->on_outdated(absl::StrCat(node_text(node), " ", why), clock_->now()));
  for (const NodeId id : nodes) {
    if (const auto gone = membership_.leave(id, over, clock_->now())) {
      depart(*gone, absl::AbortedError("this node's epoch is over"));
    }
  }
}

/// Who joins as a new node ends what was here of it, and of the process that had its address.
void Cluster::make_room(const NodeInfo& node, const v1::Join& join) {
  const auto depart_now = [this](NodeId id, const std::string& why) {
    if (const auto gone = membership_.leave(id, why, clock_->now())) {
      depart(*gone, absl::AbortedError(absl::StrCat("this node ", why)));
    }
  };
  if (join.has_resume()) {
    const NodeId id(join.resume().node_id());
    const NodeInfo* old = membership_.find(id);
    if (old != nullptr && is_same_process(*old, node)) {
      depart_now(id, "came back without its part in the job");
    }
  }
  if (const auto id = membership_.gone_from(node, clock_->now())) {
    const bool same = is_same_process(*membership_.find(*id), node);
    depart_now(*id, same ? "came back without its part in the job"
                         : "is gone, and another process has its address now");
  }
}

// ---- the coordinator ----

/// When training starts, when there is a first checkpoint, and when a recovery has come one step
/// further: from then on another process can go on.
void Cluster::record_job() {
  const JobState state = job_->state();
  const bool stopped = state == JobState::kReplacing;
  const bool recovers = stopped || state == JobState::kHalting || state == JobState::kSaving;
  // Before the first epoch trained, a job begins anew.
  if (!job_->has_trained() || !(recovers || state == JobState::kRunning)) return;
  std::vector<NodeId> lost;
  for (const auto* group : {&job_->workers(), &job_->servers()}) {
    for (const Participant& p : *group) {
      if (recovers && p.state == ParticipantState::kLost) lost.push_back(p.node.id);
    }
  }
  const CheckpointCommit& checkpoints = job_->checkpoints();
  const bool has_checkpoints = std::ranges::any_of(
      checkpoints.committed(),
      [&checkpoints](const auto& one) { return checkpoints.is_usable(one.first); });
  Recorded now{.epoch = job_->epoch(),
               .recovers = recovers,
               .stopped = stopped,
               .has_checkpoints = has_checkpoints,
               .lost = lost};
  if (recorded_ == now) return;
  if (trained_since_.first != job_->epoch()) {
    trained_since_ = {job_->epoch(), clock_->unix_time().count()};
  }
  recorded_ = std::move(now);
  const std::set<SnapshotId>& abandoned = job_->checkpoints().abandoned();
  const DurableJob record{
      .id = job_->description().id,
      .job_json = submitted_.job_json(),
      .run_directory = directory_->path().string(),
      .workers = submitted_.workers(),
      .servers = submitted_.servers(),
      .source = source_,
      .running = DurableJob::Running{.plan = *job_->plan(),
                                     .plan_basis = job_->plan_basis(),
                                     .workers = nodes_of(job_->workers()),
                                     .servers = nodes_of(job_->servers()),
                                     .first_iteration = job_->first_iteration(),
                                     .begun_with = job_->begun_with(),
                                     .samples = static_cast<std::int64_t>(job_->samples()),
                                     .started_unix_ms = trained_since_.second,
                                     .recovering_from = recovers ? job_->recovering_from() : "",
                                     .lost = std::move(lost),
                                     .stopped = stopped,
                                     .has_checkpoints = has_checkpoints,
                                     .abandoned = {abandoned.begin(), abandoned.end()},
                                     .data = job_->data()}};
  directory_->write_file(std::filesystem::absolute(state_->job_file()).string(),
                         durable_job_to_json(record));
}

/// For whoever asks; nothing depends on it.
void Cluster::recall_last_job() {
  const absl::StatusOr<std::string> text = state_->load_outcome();
  absl::StatusOr<v1::GetStatusResponse> outcome =
      text.ok() ? outcome_from_json(*text) : text.status();
  if (!outcome.ok() && !absl::IsNotFound(outcome.status())) {
    spdlog::warn("{}: {}", state_->outcome_file().string(),
                 one_line(std::string(outcome.status().message())));
  }
  const bool is_new = state_->is_new();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (outcome.ok()) {
    last_job_ = *std::move(outcome);
  } else if (!is_new) {
    // An operator gave the job up, by moving its record away.
    const auto newest = catalog_.find("");
    last_job_.set_message(unknown_end_text(newest.ok() ? *newest : nullptr));
    note(EventKind::kJob, last_job_.message());
  }
}

absl::Status Cluster::restore() {
  const std::string file = state_->job_file().string();
  const auto refuse = [&file](const absl::Status& why) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot go on with the job in ", file, ": ", why.message(),
        "; put that right and start again, or move the file away to give the job up (its "
        "checkpoints stay)"));
  };
  const absl::StatusOr<std::optional<std::string>> text = state_->load_job();
  if (!text.ok()) return refuse(text.status());
  if (!*text) {
    recall_last_job();
    return absl::OkStatus();
  }
  absl::StatusOr<DurableJob> record = durable_job_from_json(**text);
  // The nodes train on meanwhile: who has a whole copy loses nothing.
  if (absl::IsDataLoss(record.status())) return refuse(record.status());
  if (!record.ok()) {
    state_->set_job_aside();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      note(EventKind::kAlarm, absl::StrCat("the job in ", file, " is given up, and the file is ",
                                           file, ".broken now: ", record.status().message()));
    }
    recall_last_job();
    return absl::OkStatus();
  }
  const absl::Status status = go_on_with(*std::move(record));
  return status.ok() ? status : refuse(status);
}

/// Those of one job. JobRun knows which of them an epoch may begin from; of all of them it must
/// know that servers have told already.
std::vector<CheckpointManifest> Cluster::committed_checkpoints(const std::string& job_id) const {
  std::vector<std::string> unreadable;
  std::vector<CheckpointManifest> all = archive_.load(unreadable);
  for (const std::string& what : unreadable) spdlog::error("{}", one_line(what));
  std::erase_if(all, [&](const CheckpointManifest& manifest) { return manifest.job_id != job_id; });
  return all;
}

/// No node of it has begun: it waits for nodes once more.
absl::Status Cluster::wait_again(const DurableJob& record, const v1::SubmitRequest& request,
                                 JobDescription description) {
  POSEIDON_ASSIGN_OR_RETURN(const std::uint64_t epoch, state_->next_epoch());
  auto begin = RunDirectory::Begin::kAnew;
  if (record.source) {
    POSEIDON_RETURN_IF_ERROR(add_source(*record.source, description));
    const auto& source = catalog_.all().at(*record.source);
    if (source.job_id == description.id) begin = RunDirectory::Begin::kGoOn;
  }
  POSEIDON_ASSIGN_OR_RETURN(std::shared_ptr<RunFiles> directory,
                            disk_.open(record.run_directory, begin, run_directory_events()));
  state_->drop_outcome();  // if the submission did not come so far
  description.epoch = Epoch(epoch);
  install_job(std::make_unique<JobRun>(options_.job, std::move(description), clock_->now()),
              request, std::move(directory), progress_of_earlier(record.run_directory, begin));
  return absl::OkStatus();
}

/// What its next epoch may begin from. NOT_FOUND when it had checkpoints and none is left.
absl::StatusOr<std::vector<CheckpointManifest>> Cluster::checkpoints_of(
    const DurableJob& record) const {
  std::vector<CheckpointManifest> committed = committed_checkpoints(record.id);
  if (record.source) {
    // A branch: until it has a checkpoint of its own, it can only go back to where it began.
    const auto source = catalog_.all().find(*record.source);
    if (source != catalog_.all().end() && source->second.job_id != record.id) {
      committed.push_back(source->second);
    }
  }
  const std::vector<SnapshotId>& abandoned = record.running->abandoned;
  const bool can_go_back = std::ranges::any_of(committed, [&](const CheckpointManifest& manifest) {
    return std::ranges::find(abandoned, manifest.snapshot) == abandoned.end();
  });
  if (record.running->has_checkpoints && !can_go_back) {
    return absl::NotFoundError(absl::StrCat(
        "it has checkpoints, but ", (state_->path() / "checkpoints").string(),
        " holds none of them that can be read, and from the beginning it should not go on by "
        "itself"));
  }
  return committed;
}

absl::Status Cluster::go_on_with(DurableJob record) {
  v1::SubmitRequest request;
  request.set_job_json(record.job_json);
  request.set_workers(record.workers);
  request.set_servers(record.servers);
  POSEIDON_ASSIGN_OR_RETURN(const ResolvedJob resolved, resolver_(record.job_json));
  POSEIDON_RETURN_IF_ERROR(check_counts(request, resolved, record.source.has_value()));
  JobDescription description = describe_job(request, resolved, record.run_directory);
  description.id = record.id;
  if (!record.running) return wait_again(record, request, std::move(description));
  MetricsProgress progress;
  POSEIDON_ASSIGN_OR_RETURN(std::shared_ptr<RunFiles> directory,
                            disk_.reopen(record.run_directory, run_directory_events(), progress));
  POSEIDON_RETURN_IF_ERROR(check_progress(record, progress, resolved.iterations));
  POSEIDON_ASSIGN_OR_RETURN(std::vector<CheckpointManifest> committed, checkpoints_of(record));

  const std::lock_guard<std::mutex> lock(mutex_);
  const Nanoseconds now = clock_->now();
  RunningJob state = running_job(*record.running, progress, committed);
  state.model_stored = directory->has_model();
  state.age = std::max(Milliseconds(0),
                       clock_->unix_time() - Milliseconds(record.running->started_unix_ms));
  std::vector<NodeInfo> nodes;  // that may come back by their ids
  for (const auto* group : {&state.workers, &state.servers}) {
    for (const Participant& p : *group) {
      membership_.skip_ids(p.node.id);
      if (!state.stopped && p.state != ParticipantState::kLost) nodes.push_back(p.node);
    }
  }
  membership_.restore(nodes, now);
  const Epoch epoch = state.plan.epoch;
  const Iteration completed = state.completed;
  const std::string recovering_from = state.recovering_from;
  resumed_epoch_ = epoch;
  source_ = record.source;
  description.epoch = epoch;
  description.committed = std::move(committed);
  JobActions actions;
  job_ = JobRun::resume(options_.job, std::move(description), std::move(state), now, actions);
  directory_ = std::move(directory);
  curve_ = std::move(progress.curve);
  submitted_ = request;
  recorded_.reset();
  trained_since_ = {epoch, record.running->started_unix_ms};
  counted_iterations_ = completed;
  files_closed_ = false;
  if (recovering_from.empty()) {
    note(EventKind::kJob,
         absl::StrCat("job ", record.id, " goes on from iteration ", completed, " (epoch ",
                      epoch.value(), ") when its ", nodes.size(), " nodes are back"));
  } else {
    note(EventKind::kRecovery, absl::StrCat("job ", record.id, " goes on with its recovery (epoch ",
                                            epoch.value(), " is over; ", recovering_from, ")"));
  }
  apply(actions);
  members_changed();
  return absl::OkStatus();
}

}  // namespace poseidon
