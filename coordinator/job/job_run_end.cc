// The end's part of JobRun: who has finished, failed or gone, whether the model is there, and what
// ends the epoch or the job (job_run.cc has the job's life, job_run_recovery.cc what follows a
// loss).

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "coordinator/job/job_run.h"
#include "coordinator/planning/local_groups.h"

namespace poseidon {

JobActions JobRun::on_finished(NodeId from, Epoch epoch, Nanoseconds now) {
  JobActions actions;
  Participant* worker = expect_worker(from, epoch, "Finished", actions);
  if (worker == nullptr) return actions;
  const Iteration reported = run_->iterations.next(WorkerRank(worker->index));
  if (reported != description_.iterations) {
    end(false,
        absl::StrFormat("%s says it has finished, but reported %d of %d iterations",
                        participant_text(*worker), reported, description_.iterations),
        now, actions);
    return actions;
  }
  states_.note_progress(now);
  worker->state = ParticipantState::kFinished;
  if (all_in(workers_, ParticipantState::kFinished) && !model_stored_) {
    message_ = "all workers have finished; waits for the model from worker 0";
  }
  finish_if_complete(now, actions);
  return actions;
}

absl::Status JobRun::accepts_model(Epoch epoch) const {
  if (epoch != epoch_) {
    return absl::AbortedError(absl::StrFormat("the model is of epoch %d, job %s has epoch %d",
                                              epoch.value(), description_.id, epoch_.value()));
  }
  if (state() != JobState::kRunning) {
    return absl::AbortedError(absl::StrFormat("job %s is %s and takes no model now",
                                              description_.id, job_state_name(state())));
  }
  return absl::OkStatus();
}

JobActions JobRun::on_model_stored(Epoch epoch, Nanoseconds now) {
  JobActions actions;
  if (!accepts_model(epoch).ok()) return actions;
  states_.note_progress(now);
  model_stored_ = true;
  actions.emplace_back(
      LogLine{absl::StrCat("job ", description_.id, ": model.safetensors is stored")});
  finish_if_complete(now, actions);
  return actions;
}

/// Every iteration is done, and the model is on disk.
bool JobRun::is_trained() const {
  // A worker that was lost after it had finished took nothing with it.
  const bool all_finished =
      std::all_of(workers_.begin(), workers_.end(), [](const Participant& worker) {
        return worker.state == ParticipantState::kFinished ||
               worker.state == ParticipantState::kLost;
      });
  return state() == JobState::kRunning && all_finished && model_stored_;
}

void JobRun::finish_if_complete(Nanoseconds now, JobActions& actions) {
  if (!is_trained()) return;
  if (checkpoints_are_open()) {
    message_ = "waits for the last checkpoint";
    return;
  }
  if (run_->tests.pending() > 0) {
    actions.emplace_back(LogLine{
        absl::StrFormat("job %s: %d tests were not reported by every worker and are left out",
                        description_.id, run_->tests.pending())});
  }
  end(true, "", now, actions);
}

void JobRun::end(bool succeeded, const std::string& reason, Nanoseconds now, JobActions& actions) {
  const JobEvent event = succeeded      ? JobEvent::kSucceed
                         : was_stopped_ ? JobEvent::kStop
                                        : JobEvent::kFail;
  const bool ends = states_.transition(event, now);
  POSEIDON_CHECK(ends, "a job ends once");
  ended_at_ = now;
  message_ = reason;
  const bool as_wanted = succeeded || was_stopped_;
  const char* how = succeeded ? " is done" : was_stopped_ ? " ends: " : " failed: ";
  actions.emplace_back(LogLine{absl::StrCat("job ", description_.id, how, reason),
                               as_wanted ? LogLine::Kind::kJob : LogLine::Kind::kAlarm});
  end_epoch(succeeded, reason, actions);
}

/// Once for each node of the epoch that is still there.
void JobRun::end_epoch(bool succeeded, const std::string& reason, JobActions& actions) {
  for (auto* group : {&workers_, &servers_}) {
    for (Participant& p : *group) {
      if (p.state == ParticipantState::kLost || p.state == ParticipantState::kWaiting) continue;
      actions.emplace_back(SendStop{.node = p.node.id, .succeeded = succeeded, .reason = reason});
      if (!ended()) p.state = ParticipantState::kWaiting;
    }
  }
}

JobActions JobRun::on_failed(NodeId from, Epoch epoch, const std::string& reason, FailureKind kind,
                             Nanoseconds now, const std::string& unreachable) {
  JobActions actions;
  if (kind == FailureKind::kPeer) note_unreachable(from, epoch, unreachable);
  const Participant* participant = expect_participant(from, epoch, "Failed", actions);
  if (participant == nullptr) return actions;
  if (kind == FailureKind::kCheckpoint && source_ &&
      (state() == JobState::kPreparingServers || state() == JobState::kPreparingWorkers)) {
    if (leave_out_doubter(*participant, reason, now, actions)) return actions;
    // Never from the beginning instead: what has been trained is worth a person's look.
    checkpoints_.set_unreadable(source_->snapshot);
    recover(EpochEnd::kCheckpointUnreadable,
            absl::StrCat(participant_text(*participant), " cannot read ", reason),
            /*in_memory=*/false, now, actions);
    return actions;
  }
  if (state() == JobState::kHalting || state() == JobState::kSaving) {
    // It is asked to halt, too, and holds what it has.
    if (kind == FailureKind::kPeer && state() == JobState::kHalting) return actions;
    if (is_stored()) return actions;
    // Whatever it is, it may be because of who was lost; the next epoch tells.
    fall_back(absl::StrCat(participant_text(*participant), " failed: ", reason), now, actions);
    return actions;
  }
  if (kind == FailureKind::kPeer) {
    if (leave_out_unreachable(*participant, unreachable, reason, now, actions)) return actions;
    recover(EpochEnd::kPeerUnreachable,
            absl::StrCat(participant_text(*participant), " failed: ", reason), /*in_memory=*/true,
            now, actions);
    return actions;
  }
  fail_for(*participant, reason, now, actions);
  return actions;
}

/// The job ends, unless it can do without.
void JobRun::fail_for(const Participant& participant, const std::string& reason, Nanoseconds now,
                      JobActions& actions) {
  if (leave_out_unfit(participant, reason, now, actions)) return;
  end(false, absl::StrCat(participant_text(participant), " failed: ", reason), now, actions);
}

JobActions JobRun::on_departure(const Departure& departure, Nanoseconds now) {
  JobActions actions;
  std::erase_if(members_, [&](const NodeInfo& node) { return node.id == departure.node.id; });
  unreachable_.forget(departure.node.id);
  Participant* participant = find(departure.node.id);
  if (participant == nullptr || is_lost(*participant)) return actions;
  // So it may be after a restart: the nodes had heard of the end, the disk had not.
  const bool all_is_done = model_stored_ && run_->tests.pending() == 0 &&
                           run_->iterations.completed() == description_.iterations;
  // While the others halt, each that is lost is one less to wait for, whatever it had finished.
  const bool part_is_done =
      state() == JobState::kRunning &&
      (all_is_done || (participant->state == ParticipantState::kFinished &&
                       (participant->index != 0 || model_stored_) && !group_needs(*participant)));
  participant->state = ParticipantState::kLost;
  if (ended()) return actions;
  const std::string text =
      absl::StrFormat("%s was lost: it %s; last heard %.1f s ago", participant_text(*participant),
                      departure.reason, seconds(departure.silent));
  if (is_trained() && participant->node.role == NodeRole::kServer) {
    actions.emplace_back(
        LogLine{absl::StrCat("job ", description_.id, ": ", text,
                             "; training is done, only its last checkpoint is not")});
    end(true, "", now, actions);
    return actions;
  }
  if (part_is_done) {
    actions.emplace_back(LogLine{absl::StrCat("job ", description_.id, ": ", text,
                                              "; its part was finished, the job goes on")});
    if (all_is_done) finish_if_complete(now, actions);
    return actions;
  }
  const bool is_worker = participant->node.role == NodeRole::kWorker;
  if (participant->is_untried) count_mishap(participant->node, now);
  const EpochEnd usual = is_worker ? EpochEnd::kWorkerLost : EpochEnd::kServerLost;
  recover(participant->is_untried ? EpochEnd::kNodeUnfit : usual, text, is_worker, now, actions);
  return actions;
}

/// What others of its group still lack comes through its relay.
bool JobRun::group_needs(const Participant& participant) const {
  if (participant.node.role != NodeRole::kWorker || !run_) return false;
  const std::vector<WorkerRank> group = group_of(*run_->plan, WorkerRank(participant.index));
  return std::ranges::any_of(group, [&](WorkerRank rank) {
    const Participant& member = workers_[rank.value()];
    // Who is lost while the job goes on had finished its part.
    return member.index != participant.index && !is_lost(member) &&
           member.state != ParticipantState::kFinished;
  });
}

JobActions JobRun::fail(const std::string& reason, Nanoseconds now) {
  JobActions actions;
  if (job_goes(state(), JobEvent::kFail)) end(false, reason, now, actions);
  return actions;
}

JobActions JobRun::stop(const std::string& why, Nanoseconds patience, Nanoseconds now) {
  JobActions actions;
  if (!job_goes(state(), JobEvent::kStop)) return actions;
  const Iteration completed = run_ ? run_->iterations.completed() : first_iteration_;
  if (!stopping_) stopping_ = Stopping{.why = why, .completed = completed, .until = now};
  stopping_->until = now + patience;
  drop_change();
  if (patience > Nanoseconds::zero() && completed > first_iteration_) {
    // What does not train has nothing to save, or is about to save what is in memory.
    absl::StatusOr<JobActions> asked = save_checkpoint(now);
    if (asked.ok()) actions = *std::move(asked);
  }
  settle_stop(now, actions);
  return actions;
}

/// For a checkpoint, or the reports of what it has behind it, or the end of training.
bool JobRun::waits_to_stop(Nanoseconds now) const {
  if (now >= stopping_->until) return false;
  if (state() == JobState::kHalting || state() == JobState::kSaving) return true;
  if (state() != JobState::kRunning) return false;
  const Iteration completed = run_->iterations.completed();
  if (completed == description_.iterations) return true;
  // A periodic one will do as well as the one that was asked for.
  const auto& committed = checkpoints_.committed();
  const auto saved = committed.lower_bound(snapshot_id(epoch_, stopping_->completed));
  if (saved != committed.end() && snapshot_epoch(saved->first) == epoch_ &&
      saved->second.iteration() <= completed) {
    return false;
  }
  return checkpoints_.asked_for() || newest_untold() != nullptr;
}

/// The newest checkpoint, where it is of this epoch and ahead of the reports; null otherwise.
const CheckpointManifest* JobRun::newest_untold() const {
  const CheckpointManifest* newest = checkpoints_.newest();
  const bool is_untold = newest != nullptr && snapshot_epoch(newest->snapshot) == epoch_ &&
                         newest->iteration() > run_->iterations.completed();
  return is_untold ? newest : nullptr;
}

/// "; checkpoint 3-120 is whole, worker 1 (10.0.0.3:4702) has told of 117 iterations so far"; ""
/// unless that is all that is lacking.
std::string JobRun::reports_awaited_text() const {
  if (state() != JobState::kRunning || checkpoints_.asked_for()) return "";
  const CheckpointManifest* newest = newest_untold();
  if (newest == nullptr) return "";
  const WorkerRank slowest = run_->iterations.slowest();
  return absl::StrCat("; checkpoint ", snapshot_name(newest->snapshot), " is whole, ",
                      participant_text(workers_[slowest.value()]), " has told of ",
                      run_->iterations.next(slowest), " iterations so far");
}

/// Ends the job that shall end, once there is nothing more to wait for.
void JobRun::settle_stop(Nanoseconds now, JobActions& actions) {
  if (!stopping_ || ended()) return;
  if (waits_to_stop(now)) {
    message_ = absl::StrCat(stopping_->why, "; it ends when what it has trained is saved",
                            reports_awaited_text(),
                            unwritten_.empty() ? "" : "; " + unwritten_.rbegin()->second.why());
    return;
  }
  std::string failed;
  if (!unwritten_.empty()) {
    const auto& [snapshot, manifest] = *unwritten_.rbegin();
    failed =
        absl::StrCat(" (", snapshot_name(snapshot), " is not written down: ", manifest.why(), ")");
  }
  give_up_unwritten(actions);
  if (is_trained()) {  // and only its last checkpoint is not whole
    end(true, "", now, actions);
    return;
  }
  const CheckpointManifest* newest = checkpoints_.newest_usable();
  const Iteration saved = newest == nullptr ? 0 : newest->iteration();
  std::string left = "there is no checkpoint of it";
  if (newest != nullptr) {
    left = saved == description_.iterations
               ? "`poseidon checkpoint export` writes the model of its end from checkpoint "
               : "`poseidon checkpoint restore` goes on from checkpoint ";
    left += snapshot_name(newest->snapshot);
  }
  if (const auto& last = checkpoints_.last(); failed.empty() && last && !last->committed) {
    failed = absl::StrCat(" (", snapshot_name(last->snapshot), " failed: ", last->reason, ")");
  }
  left += failed;
  was_stopped_ = true;
  ended_unsaved_ = saved < stopping_->completed;
  end(false, absl::StrCat(stopping_->why, "; ", left), now, actions);
}

}  // namespace poseidon
