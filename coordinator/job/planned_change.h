#pragma once

// Changes of a job that trains, which are no losses: more workers or servers are taken in, the job
// goes over to a better plan, or nodes leave that said so before.
//
// The first two begin with a checkpoint. Training goes on meanwhile, and also if the checkpoint
// fails. Once it is committed and the metrics reach it, the epoch ends, and the next epoch begins
// there.
//
// A node that leaves halts with the others and gives what it holds, so that no iteration is made
// again. Then an idle node gets its place, or the place is removed; the job does not wait.
//
// Called by: job_run.h, when members come, when times are measured, when time passes, and when a
// checkpoint is committed.
// Calls: saving.h for the checkpoint, recovery.h for the way to the next epoch.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/plan.h"
#include "coordinator/job/ending.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/job/job_context.h"
#include "coordinator/job/recovery.h"
#include "coordinator/job/saving.h"

namespace poseidon {

/// One job's. One thread only.
class PlannedChange {
 public:
  PlannedChange(JobContext& job, Saving& saving, Ending& ending, Recovery& recovery)
      : job_(job), saving_(saving), ending_(ending), recovery_(recovery) {}

  /// Members have said goodbye or are drained: ends the epoch that uses them.
  void consider_leaving(Nanoseconds now, JobActions& actions);
  /// While the job trains: plans to take new members in, after a while, as more may come.
  void consider_growth(Nanoseconds now, JobActions& actions);
  /// How long the slowest worker's layers take now. A plan that would be better is written down for
  /// the next start and shown; with sync.replan the job will go over to it.
  void on_measured_times(const std::vector<LayerTimes>& times, Nanoseconds now,
                         JobActions& actions);
  void tick(Nanoseconds now, JobActions& actions);
  /// While the job trains: goes over to what is planned, if its checkpoint is committed and the
  /// metrics reach it.
  void on_checkpoint(Nanoseconds now, JobActions& actions);
  /// Another epoch begins: no other plan for a while.
  void on_epoch_begun(Nanoseconds now);
  /// No change until the next one is planned.
  void drop() { change_.reset(); }
  /// What a worker without a place in the job that trains waits for, for people: "joins in 8 s, or
  /// at the next checkpoint". "" when there is nothing to say.
  std::string newcomer_note(Nanoseconds now) const;

 private:
  struct Change {
    std::string why;
    bool is_for_servers = false;
    std::optional<Plan> plan;
    Nanoseconds due{0};           ///< when a checkpoint is asked for
    std::optional<Iteration> at;  ///< the checkpoint to go on from: it was asked for, or came
    /// The newest checkpoint when the change was planned; 0: there was none.
    SnapshotId newest_then;
  };

  Nanoseconds not_before() const;
  void put_off(Nanoseconds until);
  bool pays_to_grow(std::size_t workers, Nanoseconds now) const;
  void take_next_checkpoint();
  void relieve_leaving(Nanoseconds now, JobActions& actions);
  void plan_for_servers(std::size_t servers, Nanoseconds now, JobActions& actions);
  bool is_worth_it() const;
  void compare_plans(const ReplanDecision& decision, JobActions& actions);
  void ask_for_checkpoint(Nanoseconds now, JobActions& actions);
  bool is_committed() const;
  void give_up(Nanoseconds now);

  JobContext& job_;
  Saving& saving_;
  Ending& ending_;
  Recovery& recovery_;
  std::optional<Change> change_;
  Nanoseconds change_after_{0};   ///< no change sooner, ...
  Nanoseconds servers_after_{0};  ///< ... but of servers not sooner than this
  Nanoseconds replan_after_{0};   ///< no other plan sooner
  Nanoseconds relieve_after_{0};  ///< no checkpoint without the servers that leave sooner
  int plan_changes_ = 0;
};

}  // namespace poseidon
