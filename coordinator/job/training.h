#pragma once

// What workers report while a job trains, and the lines of metrics.jsonl that come of it.
//
// Called by: job_run.h, which has checked the sender.
// Calls: reports/reports.h combines the reports; reports/standstill.h; ending.h, when a loss is not
// finite; recovery.h and staffing.h, for each new iteration.
//
// Invariant: metrics lines come in the order of iterations, each exactly once; RollBackMetrics
// takes those back that the next epoch will write again.

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/job/ending.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/job/job_context.h"
#include "coordinator/job/recovery.h"
#include "coordinator/job/reports/standstill.h"

namespace poseidon {

/// One job's. One thread only.
class Training {
 public:
  Training(JobContext& job, Ending& ending, Recovery& recovery)
      : job_(job),
        ending_(ending),
        recovery_(recovery),
        furthest_(job.run->first_iteration),
        standstill_(job.options.standstill) {}
  /// Goes on with what an earlier coordinator has written down. `test`: the last one.
  void resume(Iteration completed, std::optional<TestResult> test);

  /// `age`: for how long the worker had it when it told of it.
  void on_iteration(const Participant& worker, Iteration iteration, double loss, Nanoseconds age,
                    Nanoseconds now, JobActions& actions);
  void on_test(const Participant& worker, Iteration iteration, const TestPart& part,
               Nanoseconds now, JobActions& actions);
  /// How many batches have gone through the worker's network in this epoch, in tests too. Progress
  /// while nothing is reported: a test may take hours.
  void on_batches(NodeId from, std::uint64_t batches, Nanoseconds now);
  /// What a node waits for, as of its last heartbeat. What does not fit the plan is left out.
  void on_awaited(NodeId from, std::vector<AwaitedData> awaited, Nanoseconds now);
  /// Looks whether the job stands still: tells it, and later has the job recover.
  void tick(Nanoseconds now, JobActions& actions);
  /// For how long nothing has moved; 0 while that is no alarm.
  Nanoseconds standstill() const { return standstill_lasts_; }
  void extend_deadlines(Nanoseconds duration, Nanoseconds now) {
    standstill_.extend_deadlines(duration, now);
  }

  /// How many iterations were reported that nobody had reported in their epoch ...
  std::uint64_t advances() const { return advances_; }
  /// ... and which nodes had to take part in the one before such an iteration, so that it could
  /// begin.
  std::vector<NodeId> needed_to_advance() const;
  /// All workers but these, if there are any others, have told of all they had to do.
  bool others_have_finished(const std::vector<NodeId>& nodes) const;
  /// The number of steps behind the parameters that are being tested: a test of them is due, and
  /// not all workers have told of it.
  std::optional<Iteration> test_under_way() const;
  /// The last one that all workers have told of.
  const std::optional<TestResult>& last_test() const { return test_; }
  /// Batches that went through the network, of all workers and epochs.
  std::uint64_t passes() const { return passes_; }

 private:
  void complete_iteration(const IterationResult& result, JobActions& actions);
  double images_done() const;
  std::vector<NodeId> busy_workers() const;

  JobContext& job_;
  Ending& ending_;
  Recovery& recovery_;
  std::optional<TestResult> test_;
  Iteration furthest_ = 0;  ///< how many iterations have ever been complete
  std::uint64_t advances_ = 0;
  std::uint64_t passes_ = 0;
  Standstill standstill_;
  std::optional<Epoch> watched_;     ///< the epoch that standstill_ is of
  Nanoseconds standstill_lasts_{0};  ///< above 0: and people have been told
};

}  // namespace poseidon
