#pragma once

// A job that waits for its first nodes: for enough of them, for the stores of the checkpoint that
// it goes on from, and for an epoch whose number nobody has used.
//
// Called by: job_run.h, when members change and when time passes.
// Calls: staffing.h chooses the nodes; preparation.h begins the first epoch.

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/job/job_context.h"
#include "coordinator/job/preparation.h"

namespace poseidon {

/// One job's. One thread only. Used while the job is waiting.
class Waiting {
 public:
  Waiting(JobContext& job, Preparation& preparation);

  /// "waits for nodes: 1 of 2 workers ..."
  std::string text() const;
  /// Members have come or gone. Takes the first that fit as soon as there are enough.
  void on_members(Nanoseconds now, JobActions& actions);
  /// The number of another epoch, as a server has another coordinator's checkpoints of this one.
  void on_epoch(const absl::StatusOr<std::uint64_t>& epoch, Nanoseconds now, JobActions& actions);
  /// Asks again for an epoch's number that the disk has refused.
  void tick(Nanoseconds now, JobActions& actions);

 private:
  bool epoch_is_used() const;

  JobContext& job_;
  Preparation& preparation_;
};

}  // namespace poseidon
