#pragma once

// The way from a loss to the next epoch: halts the nodes that are left, saves what they hold in
// memory, fills vacant places, begins a new epoch. docs/recovery.md walks through it.
//
// Called by: job_run.h, when a node is lost or answers; exclusion.h, when a node is left out;
// planned_change.h, whose changes take the same way.
// Calls: saving.h, ending.h; preparation.h begins the next epoch.
//
// When a worker is lost, everything of the iteration in flight is still in memory elsewhere: the
// others halt, the state after the last iteration that all finished is saved, and the next epoch
// goes on from there. When a server is lost, or what is in memory does not fit together, it goes
// on from the newest committed checkpoint, and where there is none, from the beginning.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/job/ending.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/job/job_context.h"
#include "coordinator/job/job_counts.h"
#include "coordinator/job/preparation.h"
#include "coordinator/job/reports/idle_recoveries.h"
#include "coordinator/job/saving.h"

namespace poseidon {

/// One job's. One thread only.
class Recovery {
 public:
  Recovery(JobContext& job, Saving& saving, Ending& ending, Preparation& preparation)
      : job_(job),
        saving_(saving),
        ending_(ending),
        preparation_(preparation),
        idle_recoveries_(job.options.idle_recoveries) {}

  // ---- the epoch ends ----
  /// A node is lost or left out: its state says so already. `in_memory`: it is a worker, so that
  /// everything else may still be there.
  void recover(EpochEnd what, const std::string& reason, bool in_memory, Nanoseconds now,
               JobActions& actions);
  /// No node is lost, but the job goes over to something better, from a checkpoint that is
  /// committed.
  void change_over(EpochEnd what, const std::string& why, Nanoseconds now, JobActions& actions);
  /// What the nodes hold in memory is given up: the next epoch goes on from a checkpoint.
  void fall_back(const std::string& why, Nanoseconds now, JobActions& actions);
  /// An earlier coordinator died while the job recovered. `is_over`: its nodes were told to stop;
  /// they come back as new nodes. Otherwise those that halted still hold what they held, and say so
  /// again when they are back.
  void resume(const std::string& from, bool is_over, Nanoseconds now);

  // ---- halting and saving ----
  void on_halted(Participant& participant, const HeldVersions& held, Nanoseconds now,
                 JobActions& actions);
  /// A checkpoint was committed or has failed: while saving, it may be the one that is waited for.
  void look_for_saved(Nanoseconds now, JobActions& actions);
  /// While saving: all of it is in the servers' stores, and only its manifest is not written.
  bool is_stored() const;
  /// A write that the disk refused is worth another try: somebody waits for it, and not for too
  /// long yet.
  bool waits_for_disk(Nanoseconds now) const;

  // ---- replacing ----
  /// Fills the vacant places if it can, and takes the number of a new epoch.
  void try_replacing(Nanoseconds now, JobActions& actions);
  /// The state directory has taken the number, or has not. True: the new epoch begins.
  bool on_epoch(const absl::StatusOr<std::uint64_t>& epoch, Nanoseconds now, JobActions& actions);
  /// The new epoch trains: the job has recovered. Returns for how long it had stood still; nothing
  /// when it had not.
  std::optional<Nanoseconds> finish(Nanoseconds now);

  /// An iteration is complete that never was before.
  void on_new_iteration() { idle_recoveries_.got_on(); }
  /// While halting, saving or replacing: looks at the deadlines.
  void tick(Nanoseconds now, JobActions& actions);
  /// Extends all deadlines by `duration`, during which the coordinator could not receive.
  void extend_deadlines(Nanoseconds duration, Nanoseconds now);

  /// The job stands still since a loss or a change.
  bool is_under_way() const { return interruption_.has_value(); }
  /// Since when vacant places wait to be filled; 0: since ever.
  Nanoseconds vacant_since() const {
    return interruption_ ? interruption_->vacant_since : Nanoseconds{0};
  }
  /// How long vacant places wait at most.
  Nanoseconds most_waited() const {
    return job_.description.replace_timeout + job_.options.recovery_timeout;
  }
  int recoveries() const { return recoveries_; }  ///< losses, but not changes
  /// How long it took from the last decision for a new epoch until that trained: what a change of
  /// the job costs. 0: there was none.
  Nanoseconds change_cost() const { return change_cost_; }
  /// When that was over.
  Nanoseconds trains_since() const { return trains_since_; }
  const std::string& reason() const { return reason_; }  ///< of the last time, for people
  const JobCounts& counts() const { return counts_; }    ///< why epochs ended

 private:
  /// What is in force from the end of an epoch until the next one trains. A job that ended while it
  /// recovered keeps it.
  struct Interruption {
    explicit Interruption(Nanoseconds now) : since(now), vacant_since(now) {}

    Nanoseconds since;         ///< when the epoch stopped
    Nanoseconds vacant_since;  ///< since when places wait to be filled; later with every loss
    std::map<NodeId, HeldVersions> held;  ///< of those that have halted
    Iteration saving = 0;                 ///< while saving: the version
  };

  bool recovers_too_often(const std::string& reason, Nanoseconds now, JobActions& actions);
  void halt(const std::string& reason, Nanoseconds now, JobActions& actions);
  std::optional<HeldVersions> held_together() const;
  void halted_all(Nanoseconds now, JobActions& actions);
  std::string silent_text() const;
  void replace(Nanoseconds now, JobActions& actions);
  bool fill_vacancies(bool in_time, bool needed, Nanoseconds now, std::string& missing);
  bool choose_source(bool in_time, std::string& missing);
  void wait_for(const std::string& missing, Nanoseconds now, JobActions& actions);
  void on_epoch_refused(const std::string& why, Nanoseconds now, JobActions& actions);
  void begin_epoch(Epoch epoch, Nanoseconds now, JobActions& actions);
  void tell_what_is_lost(const EpochRun& over, JobActions& actions) const;

  JobContext& job_;
  Saving& saving_;
  Ending& ending_;
  Preparation& preparation_;
  std::optional<Interruption> interruption_;
  std::string reason_;
  IdleRecoveries idle_recoveries_;
  int recoveries_ = 0;
  Nanoseconds begun_at_{0};  ///< when the epoch began
  Nanoseconds change_cost_{0};
  Nanoseconds trains_since_{0};
  JobCounts counts_;
};

}  // namespace poseidon
