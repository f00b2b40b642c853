#pragma once

// What all parts of one job work with: its state, its nodes, its epoch, its checkpoints.
//
// Called by: job_run.h owns it; saving.h, ending.h, preparation.h, waiting.h, recovery.h,
// exclusion.h, planned_change.h and training.h each have a reference to it.
// Calls: job_states.h, epoch_run.h, and the rooms staffing/, checkpoints/ and reports/.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "coordinator/job/checkpoints/checkpoint_commit.h"
#include "coordinator/job/checkpoints/epoch_source.h"
#include "coordinator/job/epoch_run.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/job/job_description.h"
#include "coordinator/job/job_states.h"
#include "coordinator/job/plan_memory.h"
#include "coordinator/job/reports/training_data.h"
#include "coordinator/job/reports/training_pace.h"
#include "coordinator/job/staffing/staffing.h"
#include "coordinator/records/disk_request.h"

namespace poseidon {

/// One job's. One thread only. Outlives all parts.
struct JobContext {
  JobContext(const JobRunOptions& the_options, JobDescription the_description, Nanoseconds now);
  JobContext(const JobContext&) = delete;
  JobContext& operator=(const JobContext&) = delete;

  const JobRunOptions options;
  const JobDescription description;
  /// Of the job. A bound while only its programs know, which tell when they finish.
  Iteration iterations = 0;
  JobStateMachine states;
  std::string message;  ///< what goes on, or why the job has ended, for people
  /// Why the last epoch was over before it trained; "" once one trains.
  std::string last_failure;
  CheckpointCommit checkpoints;
  EpochSource source;
  Staffing staffing;
  std::unique_ptr<EpochRun> run;  ///< never null
  TrainingData data;
  TrainingPace pace;
  PlanMemory plans;
  DiskRequest next_epoch;  ///< for the number of the next epoch

  JobState state() const { return states.state(); }
  bool ended() const { return is_final(state()); }
  Roster& roster() { return staffing.roster(); }
  const Roster& roster() const { return staffing.roster(); }
  std::vector<Participant>& workers() { return roster().workers; }  ///< by rank
  const std::vector<Participant>& workers() const { return roster().workers; }
  /// Behind a message: "; the attempt before failed: ...", or "".
  std::string last_failure_text() const {
    return last_failure.empty() ? "" : absl::StrCat("; the attempt before failed: ", last_failure);
  }
  std::optional<Iteration> known_iterations() const {
    if (description.programs.end_it && iterations == description.iterations) return std::nullopt;
    return iterations;
  }
  bool has_trained() const { return pace.has_begun(); }  ///< in this epoch or before
  /// What the next epoch may begin from, newest last.
  std::vector<const CheckpointManifest*> usable_checkpoints() const {
    return source.usable(run->told());
  }
  /// "job digits-7: " and the text, as a line of the log.
  void log(absl::string_view text, JobActions& actions,
           LogLine::Kind kind = LogLine::Kind::kJob) const {
    actions.emplace_back(LogLine{absl::StrCat("job ", description.id, ": ", text), kind});
  }
};

}  // namespace poseidon
