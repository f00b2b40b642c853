// The checkpoints' part of JobRun: a start from one, and what is saved when (job_run_recovery.cc
// has what they are good for).

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "coordinator/job/job_run.h"

namespace poseidon {

// ---- a start from a checkpoint ----

/// Where a run is restored from is the operator's choice: other checkpoints that are there, of this
/// course or another, never take its place.
void JobRun::begin_at_source() {
  if (!description_.source) return;
  const auto& committed = checkpoints_.committed();
  const auto found = committed.find(*description_.source);
  POSEIDON_CHECK(found != committed.end(), "the source is one of the checkpoints given");
  source_ = found->second;
  first_iteration_ = source_->iteration();
  furthest_ = first_iteration_;
  begun_with_ = source_->begun_with;
  samples_ = source_->samples;
  POSEIDON_CHECK(first_iteration_ < description_.iterations, "something is left to do");
  for (const auto& [snapshot, manifest] : committed) {
    if (snapshot != source_->snapshot) checkpoints_.abandon(snapshot);
  }
}

/// As many workers as before: by the same schemes the run goes on to the same bytes, whatever the
/// number of servers.
bool JobRun::repeats_source_plan() const {
  return !run_ && source_ && source_->workers == workers_.size();
}

/// "the server with data directory 01ab... (STORE_IDENTITY), which has a part of checkpoint 3-100";
/// "" when all are here.
std::string JobRun::missing_stores_text() const {
  if (!source_) return "";
  return missing_stores(*source_, [this](const std::string& identity) {
    return !store_address(members_, identity).empty();
  });
}

// ---- checkpoints ----

/// Whether servers are still storing checkpoints: those that were due, and one that was asked for.
/// A server holds back a few versions at most while training goes on.
bool JobRun::checkpoints_are_open() const {
  constexpr int kMostUnderWay = 8;
  if (std::ranges::any_of(servers_, is_lost)) return false;  // nothing gets whole any more
  if (checkpoints_.any_in_the_making()) return true;
  const Iteration every = description_.checkpoint_every;
  if (every == 0) return false;
  Iteration due = description_.iterations / every * every;
  for (int i = 0; i < kMostUnderWay && due > first_iteration_; ++i, due -= every) {
    if (!checkpoints_.is_settled(due)) return true;
  }
  return false;
}

CheckpointManifest JobRun::manifest_frame() const {
  CheckpointManifest frame;
  frame.job_id = description_.id;
  frame.job_name = description_.name;
  frame.job_json = description_.job_json;
  frame.run_directory = description_.run_directory;
  frame.workers = static_cast<std::uint32_t>(workers_.size());
  frame.begun_with = begun_with_;
  frame.samples = samples_;
  for (const Participant& server : servers_) frame.stores.push_back(server.node.store_identity);
  frame.pieces = checkpoint_pieces(*run_->plan, description_.chunk_bytes, description_.replicas);
  frame.plan = pin_of(*run_->plan);
  frame.data = data();
  return frame;
}

/// What the commit asks for; its questions go to every node of the epoch that is there.
void JobRun::carry_out(CheckpointActions checkpoint_actions, JobActions& actions) {
  std::vector<WorkerRank> lost;
  for (const Participant& worker : workers_) {
    if (is_lost(worker)) lost.emplace_back(worker.index);
  }
  for (CheckpointAction& action : checkpoint_actions) {
    if (const auto* ask = std::get_if<AskForCheckpoint>(&action)) {
      for (const auto* group : {&servers_, &workers_}) {  // who writes hears of it before who gives
        for (const Participant& p : *group) {
          if (is_lost(p)) continue;
          actions.emplace_back(SendSave{.node = p.node.id,
                                        .iteration = ask->iteration,
                                        .held = state() == JobState::kSaving,
                                        .lost = lost});
        }
      }
    } else if (auto* forget = std::get_if<ForgetParts>(&action)) {
      actions.emplace_back(std::move(*forget));
    } else if (auto* write = std::get_if<WriteManifest>(&action)) {
      actions.emplace_back(std::move(*write));
    } else if (auto* remove = std::get_if<RemoveManifest>(&action)) {
      actions.emplace_back(std::move(*remove));
    } else if (auto* log = std::get_if<CheckpointLog>(&action)) {
      actions.emplace_back(std::move(*log));
    }
  }
}

JobActions JobRun::on_checkpoint_report(NodeId from, Epoch epoch, CheckpointCommit::Report report,
                                        std::int64_t now_unix_s, Nanoseconds now) {
  JobActions actions;
  const Participant* participant = expect_participant(from, epoch, "CheckpointReport", actions);
  if (participant == nullptr) return actions;
  if (state() != JobState::kRunning && state() != JobState::kHalting &&
      state() != JobState::kSaving) {
    refuse(actions, Refusal::kWrongState,
           absl::StrFormat("CheckpointReport from %s; job %s is %s", participant_text(*participant),
                           description_.id, job_state_name(state())));
    return actions;
  }
  if (report.iteration <= first_iteration_ || report.iteration > description_.iterations) {
    refuse(actions, Refusal::kWrongIteration,
           absl::StrFormat("CheckpointReport of iteration %d from %s", report.iteration,
                           participant_text(*participant)));
    return actions;
  }
  report.server.reset();
  if (participant->node.role == NodeRole::kServer) {
    report.server = ServerIndex(participant->index);
  }
  report.who = participant_text(*participant);
  carry_out(checkpoints_.on_report(report, now_unix_s, now), actions);
  after_checkpoint_event(now, actions);
  return actions;
}

JobActions JobRun::on_manifest_written(SnapshotId snapshot, const absl::Status& status,
                                       Nanoseconds now) {
  JobActions actions;
  const bool is_held =
      (state() == JobState::kHalting || state() == JobState::kSaving || stopping_) &&
      checkpoints_.being_written(snapshot) != nullptr;
  if (!status.ok() && is_held && waits_for_disk(now)) {
    // The disk may have room again soon, and who waits for it waits for this.
    const std::string why(status.message());
    const std::string text = absl::StrCat("cannot write down yet that iteration ",
                                          snapshot_iteration(snapshot), " is saved: ", why);
    if (unwritten_[snapshot].refused(why, now)) {
      actions.emplace_back(
          LogLine{absl::StrCat("job ", description_.id, " ", text, "; tries again"),
                  LogLine::Kind::kAlarm});
    }
    if (!stopping_) {
      message_ = absl::StrCat("recovers: ", recovering_from_, "; ", text,
                              "; it goes on when the state directory has room");
    }
    return actions;
  }
  unwritten_.erase(snapshot);
  carry_out(checkpoints_.on_manifest_written(snapshot, status), actions);
  after_checkpoint_event(now, actions);
  return actions;
}

/// While saving: all of it is in the servers' stores, and only its manifest is not written.
bool JobRun::is_stored() const {
  return state() == JobState::kSaving &&
         checkpoints_.being_written(snapshot_id(epoch_, recovery_->saving)) != nullptr;
}

/// As long as for a new epoch's number: without room for the one there is none for the other. Who
/// wants the job to end has said how long.
bool JobRun::waits_for_disk(Nanoseconds now) const {
  if (stopping_) return now < stopping_->until;
  if (!recovery_) return false;  // nothing is held for the disk
  return now - recovery_->vacant_since <= description_.replace_timeout + options_.recovery_timeout;
}

void JobRun::write_again(Nanoseconds now, JobActions& actions) {
  if (!waits_for_disk(now)) return;
  for (auto& [snapshot, manifest] : unwritten_) {
    if (!manifest.is_due(now)) continue;
    manifest.ask(now);
    actions.emplace_back(WriteManifest{*checkpoints_.being_written(snapshot)});
  }
}

/// What is on its way to the disk may get there; all else will not.
void JobRun::give_up_unwritten(JobActions& actions) {
  for (const auto& [snapshot, manifest] : std::exchange(unwritten_, {})) {
    if (manifest.is_under_way()) continue;
    carry_out(checkpoints_.on_manifest_written(snapshot, absl::AbortedError(manifest.why())),
              actions);
  }
}

JobActions JobRun::on_manifest_removed(SnapshotId snapshot, const absl::Status& status) {
  JobActions actions;
  carry_out(checkpoints_.on_manifest_removed(snapshot, status), actions);
  return actions;
}

JobActions JobRun::on_metrics_written(SnapshotId version) {
  JobActions actions;
  carry_out(checkpoints_.on_told(version), actions);
  return actions;
}

absl::StatusOr<JobActions> JobRun::save_checkpoint(Nanoseconds now) {
  if (state() != JobState::kRunning) {
    return absl::FailedPreconditionError(
        absl::StrFormat("job %s is %s: there is nothing to save just now", description_.id,
                        job_state_name(state())));
  }
  if (checkpoints_.asked_for()) return JobActions();
  if (run_->iterations.completed() == description_.iterations) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", description_.id, " has done all its ", description_.iterations,
        " iterations; its model is ", description_.run_directory, "/model.safetensors"));
  }
  absl::StatusOr<CheckpointActions> asked = checkpoints_.ask(run_->iterations.newest(), now);
  if (!asked.ok()) return asked.status();
  JobActions actions;
  carry_out(*std::move(asked), actions);
  return actions;
}

std::optional<Iteration> JobRun::checkpoint_that_was_asked_for() const {
  if (checkpoints_.asked_for()) return checkpoints_.asked_for();
  const std::optional<CheckpointOutcome>& last = checkpoints_.last();
  const bool is_there = last && last->committed && snapshot_epoch(last->snapshot) == epoch_ &&
                        state() == JobState::kRunning;
  return is_there ? std::optional(snapshot_iteration(last->snapshot)) : std::nullopt;
}

void JobRun::after_checkpoint_event(Nanoseconds now, JobActions& actions) {
  finish_if_complete(now, actions);
  if (state() == JobState::kRunning && change_ && !is_trained()) change_now(now, actions);
  if (state() == JobState::kRunning) settle_stop(now, actions);
  if (state() != JobState::kSaving) return;
  const SnapshotId wanted = snapshot_id(epoch_, recovery_->saving);
  if (checkpoints_.committed().contains(wanted)) {
    replace(now, actions);
  } else if (const auto& last = checkpoints_.last();
             last && last->snapshot == wanted && !last->committed) {
    fall_back(absl::StrCat("what is in memory could not be saved: ", last->reason), now, actions);
  }
}

}  // namespace poseidon
