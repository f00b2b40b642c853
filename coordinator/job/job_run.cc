// The events of a job: checks whether a message fits, and passes it to the part that it is for.

#include "coordinator/job/job_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/job/staffing/leavers.h"

namespace poseidon {
namespace {

/// Null, and a refusal: the message does not come from a node with a part in this epoch.
Participant* expect_participant(JobContext& job, NodeId from, Epoch epoch, const char* what,
                                JobActions& actions) {
  Participant* const participant = job.roster().find(from);
  if (participant == nullptr) {
    refuse(actions, Refusal::kNotInJob,
           absl::StrFormat("%s from node %d, which has no part in job %s", what, from.value(),
                           job.description.id));
    return nullptr;
  }
  if (epoch != job.run->epoch) {
    refuse(actions, Refusal::kStaleEpoch,
           absl::StrFormat("%s of epoch %d from %s; the job has epoch %d", what, epoch.value(),
                           participant_text(*participant), job.run->epoch.value()));
    return nullptr;
  }
  if (job.ended() || is_lost(*participant) || participant->state == ParticipantState::kWaiting) {
    // The node hears a moment later that its epoch or the job is over.
    refuse(actions, Refusal::kLate,
           absl::StrFormat("%s from %s; job %s is %s", what, participant_text(*participant),
                           job.description.id, job_state_name(job.state())));
    return nullptr;
  }
  return participant;
}

/// Null, and a refusal: the message does not come from a worker that trains in this epoch.
Participant* expect_worker(JobContext& job, NodeId from, Epoch epoch, const char* what,
                           JobActions& actions) {
  Participant* const participant = expect_participant(job, from, epoch, what, actions);
  if (participant == nullptr) return nullptr;
  if (participant->node.role != NodeRole::kWorker ||
      participant->state != ParticipantState::kRunning) {
    refuse(actions, Refusal::kWrongState,
           absl::StrFormat("%s from %s, which is %s", what, participant_text(*participant),
                           participant_state_name(participant->state)));
    return nullptr;
  }
  return participant;
}

/// Why the job fails now; "" before the deadline of its state. Recovering has deadlines of its own
/// (Recovery::tick), calibrating too (CalibrationRun::tick), and none of them fails the job here.
std::string deadline_reason(const JobContext& job, const Waiting& waiting, Nanoseconds now) {
  const Nanoseconds in_state = job.states.in_state(now);
  const Nanoseconds quiet = job.states.quiet(now);
  const bool prepares =
      job.state() == JobState::kPreparingServers || job.state() == JobState::kPreparingWorkers;
  if (job.state() == JobState::kWaiting && in_state > job.options.waiting_timeout) {
    return absl::StrFormat("after %.0f s it still %s", seconds(in_state), waiting.text());
  }
  if (prepares && in_state > job.options.preparing_timeout) {
    const auto& group =
        job.state() == JobState::kPreparingServers ? job.roster().servers : job.workers();
    return absl::StrFormat("not ready after %.0f s (--prepare-timeout-s): %s", seconds(in_state),
                           names_in(group, ParticipantState::kPreparing));
  }
  if (job.state() != JobState::kRunning) return "";
  const std::string busy = names_in(job.workers(), ParticipantState::kRunning);
  if (busy.empty() && !job.run->model_stored && quiet > job.options.upload_timeout) {
    return absl::StrFormat("all workers have finished, but %s sent no model for %.0f s",
                           participant_text(job.workers()[0]), seconds(quiet));
  }
  if (busy.empty() || quiet <= job.options.progress_timeout) return "";
  return absl::StrFormat(
      "no report for %.0f s after %d iterations; the slowest is %s; not finished: %s",
      seconds(quiet), job.run->iterations.completed(),
      participant_text(job.workers()[job.run->iterations.slowest().value()]), busy);
}

/// The participant has finished its part, and no other node of the job needs data from it.
bool is_done(const Participant& participant, const EpochRun& run, const Roster& roster) {
  return participant.state == ParticipantState::kFinished &&
         (participant.index != 0 || run.model_stored) &&
         !roster.group_needs(participant, *run.plan);
}

}  // namespace

JobRun::JobRun(const JobRunOptions& options, JobDescription description, Nanoseconds now)
    : job_(options, std::move(description), now),
      saving_(job_),
      ending_(job_, saving_),
      preparation_(job_, saving_, ending_),
      waiting_(job_, preparation_),
      recovery_(job_, saving_, ending_, preparation_),
      exclusion_(job_, ending_, recovery_),
      change_(job_, saving_, ending_, recovery_),
      training_(job_, ending_, recovery_) {}

// ---- nodes come and go ----

JobActions JobRun::on_members(const std::vector<NodeInfo>& members, Nanoseconds now) {
  JobActions actions;
  job_.staffing.set_members(members);
  change_.consider_leaving(now, actions);
  if (state() == JobState::kReplacing) recovery_.try_replacing(now, actions);
  if (state() == JobState::kRunning) change_.consider_growth(now, actions);
  if (state() == JobState::kWaiting) waiting_.on_members(now, actions);
  return actions;
}

JobActions JobRun::on_departure(const Departure& departure, Nanoseconds now) {
  JobActions actions;
  job_.staffing.on_gone(departure.node.id);
  Participant* const participant = job_.roster().find(departure.node.id);
  if (participant == nullptr || is_lost(*participant)) return actions;
  const EpochRun& run = *job_.run;
  // After a restart of the coordinator: the nodes had heard of the end, the disk had not.
  const bool all_is_done =
      run.model_stored && run.tests.pending() == 0 && run.iterations.completed() == job_.iterations;
  // While the others halt, each node that is lost is one less to wait for, whatever it had
  // finished.
  const bool part_is_done =
      state() == JobState::kRunning && (all_is_done || is_done(*participant, run, job_.roster()));
  participant->state = ParticipantState::kLost;
  if (ended()) return actions;
  const std::string text =
      absl::StrFormat("%s was lost: it %s; last heard %.1f s ago", participant_text(*participant),
                      departure.reason, seconds(departure.silent));
  const bool is_worker = participant->node.role == NodeRole::kWorker;
  if (ending_.is_trained() && !is_worker) {
    job_.log(absl::StrCat(text, "; training is done, only its last checkpoint is not"), actions);
    ending_.end(/*succeeded=*/true, "", now, actions);
    return actions;
  }
  if (part_is_done) {
    job_.log(absl::StrCat(text, "; its part was finished, the job goes on"), actions);
    if (all_is_done) ending_.finish_if_complete(now, actions);
    return actions;
  }
  if (participant->is_untried) exclusion_.count_mishap(participant->node, now);
  const EpochEnd usual = is_worker ? EpochEnd::kWorkerLost : EpochEnd::kServerLost;
  recovery_.recover(participant->is_untried ? EpochEnd::kNodeUnfit : usual, text, is_worker, now,
                    actions);
  return actions;
}

bool JobRun::has_part(NodeId id) const { return !ended() && job_.roster().has_part(id); }

JobActions JobRun::on_outdated(const std::string& why, Nanoseconds now) {
  JobActions actions;
  if (ended()) return actions;
  job_.roster().set_all(ParticipantState::kLost);
  recovery_.recover(EpochEnd::kServerLost, why, /*in_memory=*/false, now, actions);
  return actions;
}

// ---- what nodes say ----

JobActions JobRun::on_calibration(NodeId from, Epoch epoch, const CalibrationAnswer& answer,
                                  Nanoseconds now) {
  JobActions actions;
  if (const auto* node = expect_participant(job_, from, epoch, "CalibrationReport", actions)) {
    preparation_.on_calibration(*node, answer, now, actions);
  }
  return actions;
}

JobActions JobRun::on_ready(NodeId from, Epoch epoch, Nanoseconds now,
                            const std::optional<DataIdentity>& found) {
  JobActions actions;
  Participant* const node = expect_participant(job_, from, epoch, "Ready", actions);
  if (node == nullptr || !preparation_.may_be_ready(*node, actions)) return actions;
  if (found && node->node.role == NodeRole::kWorker) {
    const std::string foreign = preparation_.check_data(*node, *found, actions);
    if (!foreign.empty() && node->is_new) {
      exclusion_.fail_for(*node, foreign, now, actions);
      return actions;
    }
    if (!foreign.empty()) {  // no newcomer's fault
      ending_.fail(absl::StrCat(participant_text(*node), " failed: ", foreign), now, actions);
      return actions;
    }
  }
  if (preparation_.on_ready(*node, now, actions)) {
    preparation_.begin_training(recovery_.finish(now), now, actions);
  }
  return actions;
}

JobActions JobRun::on_iteration(NodeId from, Epoch epoch, Iteration iteration, double loss,
                                Nanoseconds now, Nanoseconds age) {
  JobActions actions;
  if (const auto* worker = expect_worker(job_, from, epoch, "IterationReport", actions)) {
    training_.on_iteration(*worker, iteration, loss, age, now, actions);
  }
  return actions;
}

JobActions JobRun::on_test(NodeId from, Epoch epoch, Iteration iteration, const TestPart& part,
                           Nanoseconds now) {
  JobActions actions;
  if (const auto* worker = expect_worker(job_, from, epoch, "TestReport", actions)) {
    training_.on_test(*worker, iteration, part, now, actions);
  }
  return actions;
}

JobActions JobRun::on_finished(NodeId from, Epoch epoch, Nanoseconds now) {
  JobActions actions;
  if (auto* worker = expect_worker(job_, from, epoch, "Finished", actions)) {
    ending_.on_finished(*worker, now, actions);
  }
  return actions;
}

JobActions JobRun::on_model_announced(NodeId from, Epoch epoch, const std::string& sha256,
                                      Nanoseconds now) {
  JobActions actions;
  if (const auto* worker = expect_worker(job_, from, epoch, "ModelReady", actions)) {
    ending_.on_model_announced(*worker, sha256, now, actions);
  }
  return actions;
}

void JobRun::on_batches(NodeId from, std::uint64_t batches, Nanoseconds now) {
  training_.on_batches(from, batches, now);
}

JobActions JobRun::on_failed(NodeId from, Epoch epoch, const std::string& reason, FailureKind kind,
                             Nanoseconds now, const std::string& unreachable) {
  JobActions actions;
  if (kind == FailureKind::kPeer) exclusion_.note_unreachable(from, epoch, unreachable);
  if (const auto* node = expect_participant(job_, from, epoch, "Failed", actions)) {
    exclusion_.on_failed(*node, reason, kind, unreachable, now, actions);
  }
  return actions;
}

JobActions JobRun::on_halted(NodeId from, Epoch epoch, const HeldVersions& held, Nanoseconds now) {
  JobActions actions;
  if (auto* node = expect_participant(job_, from, epoch, "Halted", actions)) {
    recovery_.on_halted(*node, held, now, actions);
  }
  return actions;
}

JobActions JobRun::on_checkpoint_report(NodeId from, Epoch epoch, CheckpointCommit::Report report,
                                        std::int64_t now_unix_s, Nanoseconds now) {
  JobActions actions;
  const auto* node = expect_participant(job_, from, epoch, "CheckpointReport", actions);
  if (node == nullptr) return actions;
  if (saving_.on_report(*node, std::move(report), now_unix_s, now, actions)) {
    after_checkpoint_event(now, actions);
  }
  return actions;
}

JobActions JobRun::on_measured_times(const std::vector<LayerTimes>& times, Nanoseconds now) {
  JobActions actions;
  change_.on_measured_times(times, now, actions);
  return actions;
}

// ---- what the coordinator's disk says ----

JobActions JobRun::on_epoch(const absl::StatusOr<std::uint64_t>& epoch, Nanoseconds now) {
  JobActions actions;
  if (!job_.next_epoch.answer()) return actions;  // of an earlier job of the same name, perhaps
  if (state() == JobState::kWaiting) {
    waiting_.on_epoch(epoch, now, actions);
  } else if (recovery_.on_epoch(epoch, now, actions)) {
    change_.on_epoch_begun(now);
  }
  return actions;
}

JobActions JobRun::on_manifest_written(SnapshotId snapshot, const absl::Status& status,
                                       Nanoseconds now) {
  JobActions actions;
  const bool is_awaited =
      state() == JobState::kHalting || state() == JobState::kSaving || ending_.is_stopping();
  const bool is_held = is_awaited && job_.checkpoints.being_written(snapshot) != nullptr;
  if (!status.ok() && is_held && recovery_.waits_for_disk(now)) {
    // The disk may have room again soon.
    const std::string text =
        saving_.on_disk_full(snapshot, std::string(status.message()), now, actions);
    if (!ending_.is_stopping()) {
      job_.message = absl::StrCat("recovers: ", recovery_.reason(), "; ", text,
                                  "; it goes on when the state directory has room");
    }
    return actions;
  }
  saving_.on_written(snapshot, status, actions);
  after_checkpoint_event(now, actions);
  return actions;
}

/// A checkpoint got further, was committed or has failed: somebody may have waited for that.
void JobRun::after_checkpoint_event(Nanoseconds now, JobActions& actions) {
  ending_.finish_if_complete(now, actions);
  if (state() == JobState::kRunning && !ending_.is_trained()) change_.on_checkpoint(now, actions);
  if (state() == JobState::kRunning) ending_.settle(now, actions);
  recovery_.look_for_saved(now, actions);
}

JobActions JobRun::on_manifest_removed(SnapshotId snapshot, const absl::Status& status) {
  JobActions actions;
  saving_.carry_out(job_.checkpoints.on_manifest_removed(snapshot, status), actions);
  return actions;
}

JobActions JobRun::on_metrics_written(SnapshotId version) {
  JobActions actions;
  saving_.carry_out(job_.checkpoints.on_told(version), actions);
  return actions;
}

JobActions JobRun::on_model_stored(Epoch epoch, Nanoseconds now) {
  JobActions actions;
  ending_.on_model_stored(epoch, now, actions);
  return actions;
}

// ---- what people want ----

absl::StatusOr<JobActions> JobRun::save_checkpoint(Nanoseconds now) {
  JobActions actions;
  if (absl::Status asked = saving_.ask(now, actions); !asked.ok()) return asked;
  job_.checkpoints.mark_asked();
  return actions;
}

JobActions JobRun::fail(const std::string& reason, Nanoseconds now) {
  JobActions actions;
  if (job_goes(state(), JobEvent::kFail)) ending_.fail(reason, now, actions);
  return actions;
}

JobActions JobRun::stop(const std::string& why, Nanoseconds patience, Nanoseconds now) {
  JobActions actions;
  if (!job_goes(state(), JobEvent::kStop)) return actions;
  change_.drop();
  ending_.stop(why, patience, now, actions);
  return actions;
}

// ---- time ----

JobActions JobRun::tick(Nanoseconds now) {
  JobActions actions;
  if (state() == JobState::kCalibrating) {
    preparation_.tick(now, actions);
    return actions;
  }
  saving_.carry_out(job_.checkpoints.tick(now), actions);
  if (recovery_.waits_for_disk(now)) saving_.write_again(now, actions);
  if (ending_.is_trained()) {
    ending_.tick_trained(now, actions);
  } else {
    recovery_.tick(now, actions);
  }
  change_.tick(now, actions);
  training_.tick(now, actions);
  if (state() == JobState::kRunning && !ending_.is_trained() && !ending_.is_stopping()) {
    saving_.watch_copies(now, actions);
  }
  if (exclusion_.leave_out_silent(now, actions)) return actions;
  if (state() == JobState::kWaiting) waiting_.tick(now, actions);
  ending_.settle(now, actions);
  if (ended()) return actions;
  const std::string reason = deadline_reason(job_, waiting_, now);
  if (!reason.empty()) ending_.fail(reason, now, actions);
  return actions;
}

void JobRun::extend_deadlines(Nanoseconds duration, Nanoseconds now) {
  job_.states.extend_deadlines(duration, now);
  job_.next_epoch.extend_deadlines(duration, now);
  recovery_.extend_deadlines(duration, now);
  ending_.extend_deadlines(duration);
  training_.extend_deadlines(duration, now);
  if (job_.run->calibration) job_.run->calibration->extend_deadlines(duration);
  job_.checkpoints.extend_deadlines(duration, now);
}

// ---- how it stands ----

JobCounts JobRun::counts() const {
  JobCounts counts = recovery_.counts();
  counts.checkpoints_committed = job_.checkpoints.totals().commits;
  counts.checkpoints_failed = job_.checkpoints.totals().failures;
  counts.passes = training_.passes();
  return counts;
}

JobProgress JobRun::progress(Nanoseconds now) const {
  const Nanoseconds until = ending_.ended_at().value_or(now);
  JobProgress progress;
  progress.message = job_.message;
  if (const auto steps = training_.test_under_way(); steps && job_.message.empty()) {
    progress.message = absl::StrCat("tests the network as of iteration ", *steps);
  }
  progress.completed = ending_.taken_back_to().value_or(job_.run->iterations.completed());
  progress.loss = ending_.taken_back_to() ? ending_.left_at()->loss : job_.run->loss;
  progress.test = training_.last_test();
  progress.images_per_s = job_.pace.images_per_s(until);
  progress.training_seconds = job_.pace.seconds_until(until);
  progress.iterated_seconds = job_.pace.iterated_seconds();
  progress.training_from = job_.pace.first();
  if (!ended()) progress.standstill_seconds = seconds(training_.standstill());
  return progress;
}

JobView JobRun::view() const {
  return {.run = *job_.run,
          .roster = job_.roster(),
          .staffing = job_.staffing,
          .source = job_.source,
          .checkpoints = job_.checkpoints,
          .data = job_.data,
          .pace = job_.pace,
          .saving = saving_,
          .ending = ending_,
          .recovery = recovery_,
          .training = training_,
          .change = change_};
}

bool needs_node(const JobRun& job, NodeId id) {
  if (job.ended()) return false;
  const JobView view = job.view();
  if (view.roster.has_part(id)) {
    return job.state() != JobState::kRunning ||
           !is_done(*view.roster.find(id), view.run, view.roster);
  }
  const CheckpointManifest* const newest = view.checkpoints.newest_usable();
  if (newest == nullptr) return false;
  const std::vector<NodeId> holders = leaving_holders(view.staffing.members(), *newest);
  return std::ranges::find(holders, id) != holders.end();
}

}  // namespace poseidon
