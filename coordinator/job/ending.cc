#include "coordinator/job/ending.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/files/sha256.h"

namespace poseidon {

void Ending::end(bool succeeded, const std::string& reason, Nanoseconds now, JobActions& actions) {
  const JobEvent event = succeeded      ? JobEvent::kSucceed
                         : was_stopped_ ? JobEvent::kStop
                                        : JobEvent::kFail;
  ended_from_ = job_.state();
  const bool ends = job_.states.transition(event, now);
  POSEIDON_CHECK(ends, "a job ends once");
  ended_at_ = now;
  job_.message = reason;
  const bool as_wanted = succeeded || was_stopped_;
  const char* how = succeeded ? " is done" : was_stopped_ ? " ends: " : " failed: ";
  actions.emplace_back(LogLine{absl::StrCat("job ", job_.description.id, how, reason),
                               as_wanted ? LogLine::Kind::kJob : LogLine::Kind::kAlarm});
  end_epoch(succeeded, reason, actions);
}

void Ending::end_epoch(bool succeeded, const std::string& reason, JobActions& actions) {
  for (auto* group : job_.roster().groups()) {
    for (Participant& p : *group) {
      // A node that waits for the next epoch is told that the job has ended, once.
      const bool has_heard = p.state == ParticipantState::kWaiting && !job_.ended();
      if (p.state == ParticipantState::kLost || has_heard) continue;
      actions.emplace_back(SendStop{.node = p.node.id, .succeeded = succeeded, .reason = reason});
      if (!job_.ended()) p.state = ParticipantState::kWaiting;
    }
  }
}

bool Ending::is_trained() const {
  // A worker that was lost after it had finished took nothing with it.
  const bool all_finished = std::ranges::all_of(job_.workers(), [](const Participant& worker) {
    return worker.state == ParticipantState::kFinished || is_lost(worker);
  });
  return job_.state() == JobState::kRunning && all_finished && job_.run->model_stored;
}

void Ending::finish_if_complete(Nanoseconds now, JobActions& actions) {
  if (!is_trained()) return;
  if (saving_.is_open()) {
    job_.message = "waits for the last checkpoint";
    return;
  }
  if (job_.run->tests.pending() > 0) {
    job_.log(absl::StrCat(job_.run->tests.pending(),
                          " tests were not reported by every worker and are left out"),
             actions);
  }
  end(true, "", now, actions);
}

void Ending::tick_trained(Nanoseconds now, JobActions& actions) {
  finish_if_complete(now, actions);
  if (job_.ended() || job_.states.quiet(now) <= job_.options.last_checkpoint_timeout) return;
  job_.log(absl::StrFormat("training is done, but its last checkpoint is not whole after %.0f s",
                           seconds(job_.states.quiet(now))),
           actions, LogLine::Kind::kAlarm);
  end(true, "", now, actions);
}

/// The first program that has finished tells by that how many iterations the job has.
void Ending::take_end(const Participant& worker, JobActions& actions) {
  const Iteration reported = job_.run->iterations.next(WorkerRank(worker.index));
  if (job_.known_iterations() || reported < job_.run->iterations.newest()) return;
  job_.iterations = reported;
  saving_.end_at(reported, actions);
}

void Ending::fail_apart(const Participant& worker, Nanoseconds now, JobActions& actions) {
  const Iteration reported = job_.run->iterations.next(WorkerRank(worker.index));
  const Iteration others = std::max(job_.run->iterations.newest(), reported);
  fail(others > reported
           ? absl::StrFormat("%s has finished after %d iterations, but another worker trains "
                             "iteration %d; all programs of a job must end after as many",
                             participant_text(worker), reported, others)
           : absl::StrFormat("%s trains iteration %d, but another worker has finished after %d; "
                             "all programs of a job must end after as many",
                             participant_text(worker), reported + 1, job_.iterations),
       now, actions);
}

void Ending::on_finished(Participant& worker, Nanoseconds now, JobActions& actions) {
  take_end(worker, actions);
  const Iteration reported = job_.run->iterations.next(WorkerRank(worker.index));
  if (job_.description.programs.end_it && reported != job_.iterations) {
    fail_apart(worker, now, actions);
    return;
  }
  if (reported != job_.iterations) {
    fail(absl::StrFormat("%s says it has finished, but reported %d of %d iterations",
                         participant_text(worker), reported, job_.iterations),
         now, actions);
    return;
  }
  job_.states.note_progress(now);
  worker.state = ParticipantState::kFinished;
  if (all_in(job_.workers(), ParticipantState::kFinished) && !job_.run->model_stored) {
    job_.message = "all workers have finished; waits for the model from worker 0";
  }
  finish_if_complete(now, actions);
}

void Ending::on_model_announced(const Participant& worker, const std::string& sha256,
                                Nanoseconds now, JobActions& actions) {
  if (worker.index == 0) take_end(worker, actions);
  const Iteration reported = job_.run->iterations.next(WorkerRank(worker.index));
  if (job_.description.programs.end_it && worker.index == 0 && reported != job_.iterations) {
    fail_apart(worker, now, actions);
  } else if (worker.index != 0 || reported != job_.iterations) {
    refuse(actions, Refusal::kWrongState,
           absl::StrFormat("a model announced by %s after %d of %d iterations",
                           participant_text(worker), reported, job_.iterations));
  } else if (sha256.size() != kSha256Bytes) {
    refuse(actions, Refusal::kMalformed,
           absl::StrFormat("a model announced with a digest of %d bytes", sha256.size()));
  } else {
    job_.run->model_sha256 = sha256;
  }
}

void Ending::on_model_stored(Epoch epoch, Nanoseconds now, JobActions& actions) {
  if (!accepts_model(epoch).ok()) return;
  job_.states.note_progress(now);
  job_.run->model_stored = true;
  job_.log("model.safetensors is stored", actions);
  finish_if_complete(now, actions);
}

absl::Status Ending::accepts_model(Epoch epoch) const {
  if (epoch != job_.run->epoch) {
    return absl::AbortedError(absl::StrFormat("the model is of epoch %d, job %s has epoch %d",
                                              epoch.value(), job_.description.id,
                                              job_.run->epoch.value()));
  }
  if (job_.state() != JobState::kRunning) {
    return absl::AbortedError(absl::StrFormat("job %s is %s and takes no model now",
                                              job_.description.id, job_state_name(job_.state())));
  }
  return absl::OkStatus();
}

absl::Status Ending::accepts_model(Epoch epoch, const std::string& sha256) const {
  POSEIDON_RETURN_IF_ERROR(accepts_model(epoch));
  const std::string& announced = job_.run->model_sha256;
  if (announced.empty()) {
    return absl::UnavailableError("worker 0 has not announced its model yet");
  }
  if (sha256 == announced) return absl::OkStatus();
  return absl::FailedPreconditionError("this is not the model that worker 0 announced");
}

void Ending::stop(const std::string& why, Nanoseconds patience, Nanoseconds now,
                  JobActions& actions) {
  const Iteration completed = job_.run->iterations.completed();
  if (!stopping_) stopping_ = Stopping{.why = why, .completed = completed, .until = now};
  stopping_->until = now + patience;
  if (patience > Nanoseconds::zero() && completed > job_.run->first_iteration) {
    // What does not train has nothing to save, or is about to save what is in memory.
    saving_.ask(now, actions).IgnoreError();
  }
  settle(now, actions);
}

void Ending::settle_without_waiting(Nanoseconds now, JobActions& actions) {
  stopping_->until = now;
  settle(now, actions);
}

void Ending::extend_deadlines(Nanoseconds duration) {
  if (stopping_) stopping_->until += duration;
}

void Ending::settle(Nanoseconds now, JobActions& actions) {
  if (!stopping_ || job_.ended()) return;
  const auto* const unwritten = saving_.unwritten();
  if (waits_to_stop(now)) {
    job_.message = absl::StrCat(stopping_->why, "; it ends when what it has trained is saved",
                                reports_awaited_text(),
                                unwritten == nullptr ? "" : "; " + unwritten->second.why());
    return;
  }
  std::string failed;
  if (unwritten != nullptr) {
    const auto& [snapshot, manifest] = *unwritten;
    failed =
        absl::StrCat(" (", snapshot_name(snapshot), " is not written down: ", manifest.why(), ")");
  }
  saving_.give_up_unwritten(actions);
  if (is_trained()) {  // and only its last checkpoint is not whole
    end(true, "", now, actions);
    return;
  }
  const CheckpointManifest* newest = job_.checkpoints.newest_usable();
  const Iteration saved = newest == nullptr ? 0 : newest->iteration();
  std::string left = "there is no checkpoint of it";
  if (newest != nullptr) {
    left = saved == job_.iterations
               ? "`poseidon checkpoint export` writes the model of its end from checkpoint "
               : "`poseidon checkpoint restore` goes on from checkpoint ";
    left += snapshot_name(newest->snapshot);
  }
  if (const auto& last = job_.checkpoints.last(); failed.empty() && last && !last->committed) {
    failed = absl::StrCat(" (", snapshot_name(last->snapshot), " failed: ", last->reason, ")");
  }
  left += failed;
  was_stopped_ = true;
  ended_unsaved_ = saved < stopping_->completed;
  if (newest != nullptr) leave_at(*newest, actions);
  fail(absl::StrCat(stopping_->why, "; ", left), now, actions);
}

void Ending::leave_at(const CheckpointManifest& newest, JobActions& actions) {
  left_at_ = newest;
  const Iteration saved = newest.iteration();
  if (ended_unsaved_ || saved >= job_.run->iterations.completed()) return;
  taken_back_to_ = saved;
  actions.emplace_back(RollBackMetrics{saved});
}

/// Something is still to come: a checkpoint, the reports of iterations that it has behind it, or
/// the end of training.
bool Ending::waits_to_stop(Nanoseconds now) const {
  if (now >= stopping_->until) return false;
  if (job_.state() == JobState::kHalting || job_.state() == JobState::kSaving) return true;
  if (job_.state() != JobState::kRunning) return false;
  const Iteration completed = job_.run->iterations.completed();
  if (completed == job_.iterations) return true;
  // A periodic one will do as well as the one that was asked for.
  const auto& committed = job_.checkpoints.committed();
  const auto saved = committed.lower_bound(snapshot_id(job_.run->epoch, stopping_->completed));
  if (saved != committed.end() && snapshot_epoch(saved->first) == job_.run->epoch &&
      saved->second.iteration() <= completed) {
    return false;
  }
  return job_.checkpoints.asked_for() || newest_unreported() != nullptr;
}

/// The newest checkpoint, if it is of this epoch and ahead of the reports; else null.
const CheckpointManifest* Ending::newest_unreported() const {
  const CheckpointManifest* newest = job_.checkpoints.newest();
  const bool is_untold = newest != nullptr && snapshot_epoch(newest->snapshot) == job_.run->epoch &&
                         newest->iteration() > job_.run->iterations.completed();
  return is_untold ? newest : nullptr;
}

/// "; checkpoint 3-120 is whole, worker 1 (10.0.0.3:4702) has told of 117 iterations so far"; ""
/// unless that is all that is lacking.
std::string Ending::reports_awaited_text() const {
  if (job_.state() != JobState::kRunning || job_.checkpoints.asked_for()) return "";
  const CheckpointManifest* newest = newest_unreported();
  if (newest == nullptr) return "";
  const WorkerRank slowest = job_.run->iterations.slowest();
  return absl::StrCat("; checkpoint ", snapshot_name(newest->snapshot), " is whole, ",
                      participant_text(job_.workers()[slowest.value()]), " has told of ",
                      job_.run->iterations.next(slowest), " iterations so far");
}

}  // namespace poseidon
