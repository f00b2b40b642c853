#pragma once

// What becomes of a node that fails, is silent, or does not reach another one: whether the job
// leaves it out and goes on without it, recovers with it, or ends.
//
// Called by: job_run.h, when a node says that it has failed, when it cannot train with its data,
// and when time passes.
// Calls: staffing.h and suspects.h say which node is to blame and which can be spared; recovery.h,
// ending.h.

#include <string>
#include <vector>

#include "coordinator/job/ending.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/job/job_context.h"
#include "coordinator/job/recovery.h"

namespace poseidon {

/// As in Failed.failure.
enum class FailureKind { kJob, kCheckpoint, kPeer };

/// One job's. One thread only.
class Exclusion {
 public:
  Exclusion(JobContext& job, Ending& ending, Recovery& recovery)
      : job_(job), ending_(ending), recovery_(recovery) {}

  /// `unreachable`: of kPeer, the address of the node that does not answer; "" where that is not
  /// known.
  void on_failed(const Participant& from, const std::string& reason, FailureKind kind,
                 const std::string& unreachable, Nanoseconds now, JobActions& actions);
  /// Counts also a report that comes too late to be a failure, as another was first: the more nodes
  /// say it, the better is known which one is cut off.
  void note_unreachable(NodeId from, Epoch epoch, const std::string& address);
  /// The job ends, unless it can do without the node.
  void fail_for(const Participant& participant, const std::string& reason, Nanoseconds now,
                JobActions& actions);
  /// Leaves out the nodes that have not got ready in all that time: they hold up a run that has
  /// trained without them, or was fine before. False: there are none, or the run has not trained;
  /// then they end it.
  bool leave_out_silent(Nanoseconds now, JobActions& actions);
  /// The newcomer has cost the others the time that they waited for it.
  void count_mishap(const NodeInfo& newcomer, Nanoseconds now);

 private:
  void leave_out(Participant& participant, const std::string& why, JobActions& actions);
  bool leave_out_unfit(const Participant& failed, const std::string& reason, Nanoseconds now,
                       JobActions& actions);
  bool leave_out_doubter(const Participant& failed, const std::string& reason, Nanoseconds now,
                         JobActions& actions);
  bool leave_out_unreachable(const Participant& failed, const std::string& address,
                             const std::string& reason, Nanoseconds now, JobActions& actions);
  bool can_do_without(const Participant& participant, Nanoseconds now) const;
  std::vector<Participant*> silent_in(std::vector<Participant>& group) const;

  JobContext& job_;
  Ending& ending_;
  Recovery& recovery_;
};

}  // namespace poseidon
