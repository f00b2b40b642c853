#include "coordinator/cluster/returns.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/threads/mutex.h"
#include "coordinator/members/admission.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

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

/// Whether the record and metrics.jsonl are of one job with this number of iterations.
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

void Returns::detach(NodeId node, const std::string& reason) {
  if (!membership_.detach(node, reason, context_.now())) return;
  traces_.on_gone(node, reason);
  spdlog::info("{} (node {}) {}; it has {} ms to return, longer while the job trains with it",
               node_text(*membership_.find(node)), node.value(), reason,
               std::chrono::duration_cast<Milliseconds>(context_.options.membership.lease).count());
}

v1::CoordinatorMessage Returns::joined_message(NodeId id, const std::string& note) const {
  const auto milliseconds = [](Nanoseconds time) {
    return static_cast<std::uint32_t>(std::chrono::duration_cast<Milliseconds>(time).count());
  };
  v1::CoordinatorMessage message;
  v1::Joined& joined = *message.mutable_joined();
  joined.set_node_id(id.value());
  joined.set_heartbeat_ms(milliseconds(context_.options.membership.heartbeat));
  joined.set_lease_ms(milliseconds(context_.options.membership.lease));
  joined.set_note(note);
  return message;
}

bool Returns::reattach(NodeLink* link, NodeInfo node, const v1::Resume& resume) {
  node.id = NodeId(resume.node_id());
  const Nanoseconds now = context_.now();
  if (!host_.job() || !host_.job()->has_part(node.id) || !membership_.attach(node, now))
    return false;
  const auto countable = [](std::uint64_t iteration) {
    return iteration <= static_cast<std::uint64_t>(INT64_MAX) ? static_cast<Iteration>(iteration)
                                                              : Iteration{-1};
  };
  JobActions actions;
  const std::optional<LackingReports> lacks =
      host_.job()->on_rejoin({.node = node.id,
                              .epoch = Epoch(resume.epoch()),
                              .index = resume.index(),
                              .oldest = countable(resume.oldest_iteration()),
                              .next = countable(resume.next_iteration())},
                             actions);
  if (!lacks) return false;
  streams_.close_node(node.id, absl::AbortedError("this node has opened another stream"));
  streams_.set_node(link, node.id);
  v1::CoordinatorMessage message = joined_message(node.id, "it keeps its part in the job");
  v1::Resumed& resumed = *message.mutable_joined()->mutable_resumed();
  resumed.set_next_iteration(static_cast<std::uint64_t>(lacks->iteration));
  resumed.set_next_test(static_cast<std::uint64_t>(lacks->test));
  resumed.set_next_checkpoint(static_cast<std::uint64_t>(lacks->checkpoint));
  link->send(message);
  if (node.role == NodeRole::kServer) checkpoints_.send_keep(node, host_.active_epoch());
  spdlog::info("{} (node {}) is back, and has its part in job {}", node_text(node), node.id.value(),
               host_.job()->description().id);
  host_.apply(actions);
  return true;
}

/// The process has a part in the job's epoch as far as we know, but is in a later one, or in none:
/// an earlier coordinator ended the epoch, and died before it had written down the next.
bool Returns::is_beyond_epoch(const NodeInfo& node, const v1::Join& join) const {
  // The epochs that this coordinator has begun it knows.
  if (!host_.job() || resumed_epoch_ != host_.job()->epoch()) return false;
  if (join.has_resume() && join.resume().epoch() <= host_.job()->epoch().value()) return false;
  for (const auto* group : host_.job()->view().roster.groups()) {
    for (const Participant& p : *group) {
      if (is_same_process(p.node, node) && host_.job()->has_part(p.node.id)) {
        return !streams_.has_stream(p.node.id);
      }
    }
  }
  return false;
}

void Returns::end_outdated_epoch(const NodeInfo& node, const v1::Join& join) {
  const std::uint64_t epoch = host_.job()->epoch().value();
  const std::string why =
      join.has_resume()
          ? absl::StrCat("is in epoch ", join.resume().epoch(),
                         " already: an earlier coordinator did ",
                         "not record that it follows epoch ", epoch)
          : absl::StrCat("has no part in epoch ", epoch, " any more: an earlier coordinator ended ",
                         "it and did not record that");
  spdlog::info("{} {}", node_text(node), why);
  const std::string over = absl::StrCat("had a part in epoch ", epoch, ", which is over");
  const std::vector<NodeId> nodes = host_.nodes();
  host_.apply(host_.job()->on_outdated(absl::StrCat(node_text(node), " ", why), context_.now()));
  for (const NodeId id : nodes) {
    if (const auto gone = membership_.leave(id, over, context_.now())) {
      host_.depart(*gone, absl::AbortedError("this node's epoch is over"));
    }
  }
}

/// When a process joins as a new node, its earlier membership ends, and so does that of the process
/// that had its address.
void Returns::make_room(const NodeInfo& node, const v1::Join& join) {
  const auto depart_now = [this](NodeId id, const std::string& why) {
    if (const auto gone = membership_.leave(id, why, context_.now())) {
      host_.depart(*gone, absl::AbortedError(absl::StrCat("this node ", why)));
    }
  };
  if (join.has_resume()) {
    const NodeId id(join.resume().node_id());
    const NodeInfo* old = membership_.find(id);
    if (old != nullptr && is_same_process(*old, node)) {
      depart_now(id, "came back without its part in the job");
    }
  }
  if (const auto id = membership_.gone_from(node, context_.now())) {
    const bool same = is_same_process(*membership_.find(*id), node);
    depart_now(*id, same ? "came back without its part in the job"
                         : "is gone, and another process has its address now");
  }
}

/// For status only; nothing depends on it.
void Returns::recall_last_job() {
  const absl::StatusOr<std::string> text = context_.state->load_outcome();
  absl::StatusOr<v1::GetStatusResponse> outcome =
      text.ok() ? outcome_from_json(*text) : text.status();
  if (!outcome.ok() && !absl::IsNotFound(outcome.status())) {
    spdlog::warn("{}: {}", context_.state->outcome_file().string(),
                 one_line(std::string(outcome.status().message())));
  }
  const bool is_new = context_.state->is_new();
  MutexLock lock(context_.mutex);
  if (outcome.ok()) {
    last_job_ = *std::move(outcome);
  } else if (!is_new) {
    // An operator gave the job up, by moving its record away.
    const auto newest = checkpoints_.catalog().find("");
    last_job_.set_message(unknown_end_text(newest.ok() ? *newest : nullptr));
    watch_.note(EventKind::kJob, last_job_.message());
  }
}

absl::Status Returns::restore() {
  const std::string file = context_.state->job_file().string();
  const auto refusal = [&file](const absl::Status& why) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot continue the job in ", file, ": ", why.message(),
                     "; correct that and start again, or move the file away to give the job up "
                     "(its checkpoints stay)"));
  };
  const absl::StatusOr<std::optional<std::string>> text = context_.state->load_job();
  if (!text.ok()) return refusal(text.status());
  if (!*text) {
    recall_last_job();
    return absl::OkStatus();
  }
  absl::StatusOr<DurableJob> record = durable_job_from_json(**text);
  // The nodes train on meanwhile; with an intact copy of the record nothing is lost.
  if (absl::IsDataLoss(record.status())) return refusal(record.status());
  if (!record.ok()) {
    context_.state->set_job_aside();
    {
      MutexLock lock(context_.mutex);
      watch_.note(EventKind::kAlarm,
                  absl::StrCat("the job in ", file, " is given up, and the file is ", file,
                               ".broken now: ", record.status().message()));
    }
    recall_last_job();
    return absl::OkStatus();
  }
  const absl::Status status = go_on_with(*std::move(record));
  return status.ok() ? status : refusal(status);
}

/// No node of it has begun: it waits for nodes once more.
absl::Status Returns::wait_again(const DurableJob& record, const v1::SubmitRequest& request,
                                 JobDescription description) {
  POSEIDON_ASSIGN_OR_RETURN(const std::uint64_t epoch, context_.state->next_epoch());
  auto begin = RunDirectory::Begin::kAnew;
  if (record.source) {
    POSEIDON_RETURN_IF_ERROR(submissions_.add_source(*record.source, description));
    const auto& source = checkpoints_.catalog().all().at(*record.source);
    if (source.job_id == description.id) begin = RunDirectory::Begin::kGoOn;
  }
  POSEIDON_ASSIGN_OR_RETURN(
      std::shared_ptr<RunFiles> directory,
      context_.disk.open(record.run_directory, begin, submissions_.run_events()));
  context_.state->drop_outcome();  // if the submission did not come so far
  description.epoch = Epoch(epoch);
  host_.install(
      std::make_unique<JobRun>(context_.options.job, std::move(description), context_.now()),
      request, std::move(directory), progress_of_earlier(record.run_directory, begin));
  return absl::OkStatus();
}

/// What its next epoch may begin from. NOT_FOUND when it had checkpoints and none is left.
absl::StatusOr<std::vector<CheckpointManifest>> Returns::checkpoints_of(
    const DurableJob& record) const {
  std::vector<CheckpointManifest> committed = checkpoints_.load_of_job(record.id);
  if (record.source) {
    // A branch: until it has a checkpoint of its own, it can only go back to where it began.
    const auto source = checkpoints_.catalog().all().find(*record.source);
    if (source != checkpoints_.catalog().all().end() && source->second.job_id != record.id) {
      committed.push_back(source->second);
    }
  }
  const std::vector<SnapshotId>& abandoned = record.running->abandoned;
  const bool can_go_back = std::ranges::any_of(committed, [&](const CheckpointManifest& manifest) {
    return std::ranges::find(abandoned, manifest.snapshot) == abandoned.end();
  });
  if (record.running->has_checkpoints && !can_go_back) {
    return absl::NotFoundError(absl::StrCat("it has checkpoints, but ",
                                            (context_.state->path() / "checkpoints").string(),
                                            " has none that can be read, and the job does not "
                                            "start again from the beginning by itself"));
  }
  return committed;
}

absl::Status Returns::go_on_with(DurableJob record) {
  v1::SubmitRequest request;
  request.set_job_json(record.job_json);
  request.set_workers(record.workers);
  request.set_servers(record.servers);
  request.set_run_directory(record.run_directory);
  POSEIDON_ASSIGN_OR_RETURN(JobDescription description,
                            submissions_.describe_again(request, record.source.has_value()));
  description.id = record.id;
  if (!record.running) return wait_again(record, request, std::move(description));
  MetricsProgress progress;
  POSEIDON_ASSIGN_OR_RETURN(
      std::shared_ptr<RunFiles> directory,
      context_.disk.reopen(record.run_directory, submissions_.run_events(), progress));
  POSEIDON_RETURN_IF_ERROR(check_progress(record, progress, description.iterations));
  POSEIDON_ASSIGN_OR_RETURN(std::vector<CheckpointManifest> committed, checkpoints_of(record));

  MutexLock lock(context_.mutex);
  const Nanoseconds now = context_.now();
  RunningJob state = running_job(*record.running, progress, committed);
  state.model_stored = directory->has_model();
  state.age = std::max(Milliseconds(0),
                       context_.clock->unix_time() - Milliseconds(record.running->started_unix_ms));
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
  description.epoch = epoch;
  description.committed = std::move(committed);
  JobActions actions;
  std::unique_ptr<JobRun> job =
      JobRun::resume(context_.options.job, std::move(description), std::move(state), now, actions);
  host_.resume(std::move(job), request, record, std::move(directory), std::move(progress.curve),
               completed);
  if (recovering_from.empty()) {
    watch_.note(EventKind::kJob,
                absl::StrCat("job ", record.id, " continues from iteration ", completed, " (epoch ",
                             epoch.value(), ") when its ", nodes.size(), " nodes are back"));
  } else {
    watch_.note(EventKind::kRecovery,
                absl::StrCat("job ", record.id, " continues its recovery (epoch ", epoch.value(),
                             " is over; ", recovering_from, ")"));
  }
  host_.apply(actions);
  host_.members_changed();
  return absl::OkStatus();
}

}  // namespace poseidon
