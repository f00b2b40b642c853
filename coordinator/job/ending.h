#pragma once

// How a job ends: by itself, because it cannot go on, or because somebody wants it to.
//
// Called by: all parts of the job that find that it has to end; recovery.h ends its epochs here.
// Calls: saving.h, for the checkpoint that a job takes before it is stopped.
//
// A job that shall stop saves first what it has trained, for at most as long as the operator
// said. Then it ends, whether that is saved or not. Where it is saved, the job ends as of its
// checkpoint. Metrics of later iterations are removed: a run that goes on makes them again.
//
// Invariants
//  1. Done, Stopped and Failed are entered once, by end().
//  2. An epoch ends with one SendStop to each of its nodes that is still there.

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/checkpoint/checkpoint.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/job/job_context.h"
#include "coordinator/job/saving.h"

namespace poseidon {

/// One job's. One thread only.
class Ending {
 public:
  Ending(JobContext& job, Saving& saving) : job_(job), saving_(saving) {}

  // ---- the end of the job or of an epoch ----
  void end(bool succeeded, const std::string& reason, Nanoseconds now, JobActions& actions);
  void fail(const std::string& reason, Nanoseconds now, JobActions& actions) {
    end(/*succeeded=*/false, reason, now, actions);
  }
  void end_epoch(bool succeeded, const std::string& reason, JobActions& actions);
  /// Every iteration is done, and the model is on disk: only a last checkpoint may be lacking.
  bool is_trained() const;
  /// Ends the job that is trained, unless it waits for its last checkpoint.
  void finish_if_complete(Nanoseconds now, JobActions& actions);
  /// Ends the trained job whose last checkpoint does not get whole.
  void tick_trained(Nanoseconds now, JobActions& actions);
  /// The worker says that it has done everything.
  void on_finished(Participant& worker, Nanoseconds now, JobActions& actions);
  /// The programs of the job end after different iterations, as this worker's shows.
  void fail_apart(const Participant& worker, Nanoseconds now, JobActions& actions);
  /// It is worker 0, has reported everything, and is about to send the model with this digest.
  void on_model_announced(const Participant& worker, const std::string& sha256, Nanoseconds now,
                          JobActions& actions);
  void on_model_stored(Epoch epoch, Nanoseconds now, JobActions& actions);
  /// OK when a model of this epoch may be stored now, else ABORTED: the epoch is over or about to
  /// be, which is no fault of the sender.
  absl::Status accepts_model(Epoch epoch) const;
  /// The same of the model with this digest: UNAVAILABLE while none is announced,
  /// FAILED_PRECONDITION when another one is.
  absl::Status accepts_model(Epoch epoch, const std::string& sha256) const;

  // ---- a stop that somebody wants ----
  /// May be repeated: the last patience counts.
  void stop(const std::string& why, Nanoseconds patience, Nanoseconds now, JobActions& actions);
  /// Ends the job that is stopping, once there is nothing more to wait for.
  void settle(Nanoseconds now, JobActions& actions);
  /// The epoch is over, so that nothing more will be saved: ends the job that is stopping.
  void settle_without_waiting(Nanoseconds now, JobActions& actions);
  /// Somebody wants the job to end.
  bool is_stopping() const { return stopping_.has_value(); }
  /// It is stopping, and still has time.
  bool has_patience(Nanoseconds now) const { return stopping_ && now < stopping_->until; }
  /// Extends the patience by `duration`, during which the coordinator could not receive.
  void extend_deadlines(Nanoseconds duration);

  /// The job has ended because somebody wanted that ...
  bool was_stopped() const { return was_stopped_; }
  /// ... and no checkpoint has what it had trained when it was told to.
  bool ended_unsaved() const { return ended_unsaved_; }
  std::optional<Nanoseconds> ended_at() const { return ended_at_; }
  /// The stopped job ended as of this checkpoint, which the operator may go on from; nothing where
  /// there is none.
  const std::optional<CheckpointManifest>& left_at() const { return left_at_; }
  /// Iterations that the stopped job has after its end, where its last ones were taken back.
  std::optional<Iteration> taken_back_to() const { return taken_back_to_; }
  /// The state that it was in before; only of a job that has ended.
  JobState ended_from() const { return ended_from_; }

 private:
  void take_end(const Participant& worker, JobActions& actions);
  struct Stopping {
    std::string why;
    Iteration completed = 0;  ///< when it was told to
    Nanoseconds until{0};
  };

  bool waits_to_stop(Nanoseconds now) const;
  const CheckpointManifest* newest_unreported() const;
  void leave_at(const CheckpointManifest& newest, JobActions& actions);
  std::string reports_awaited_text() const;

  JobContext& job_;
  Saving& saving_;
  std::optional<Stopping> stopping_;
  bool was_stopped_ = false;
  bool ended_unsaved_ = false;
  std::optional<Nanoseconds> ended_at_;
  std::optional<CheckpointManifest> left_at_;
  std::optional<Iteration> taken_back_to_;
  JobState ended_from_ = JobState::kWaiting;
};

}  // namespace poseidon
