#pragma once

// From the choice of an epoch's nodes until it trains: measures them, makes the plan, gets servers
// ready and then workers.
//
// Called by: waiting.h for the first epoch, recovery.h for later ones; job_run.h passes on what
// nodes answer.
// Calls: saving.h begins the epoch's checkpoints; ending.h, when no plan can be made;
// JobDescription's functions make the plan.

#include <optional>
#include <string>

#include "common/job/data_identity.h"
#include "common/plan/calibration.h"
#include "coordinator/job/ending.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/job/job_context.h"
#include "coordinator/job/saving.h"

namespace poseidon {

/// One job's. One thread only.
class Preparation {
 public:
  Preparation(JobContext& job, Saving& saving, Ending& ending)
      : job_(job), saving_(saving), ending_(ending) {}

  /// The epoch's nodes are chosen, and JobContext::run is the new epoch. As long as the plan in
  /// force fits them it is repeated, so that the run goes on as it would have: by the same schemes,
  /// to the same bytes.
  void begin(Nanoseconds now, JobActions& actions);

  void on_calibration(const Participant& from, const CalibrationAnswer& answer, Nanoseconds now,
                      JobActions& actions);
  /// While calibrating.
  void tick(Nanoseconds now, JobActions& actions);

  /// Whether it is the turn of this node to say Ready; refuses the message otherwise.
  bool may_be_ready(const Participant& participant, JobActions& actions) const;
  /// Why the worker cannot train with the data that it found; "": it can.
  std::string check_data(const Participant& worker, const DataIdentity& found, JobActions& actions);
  /// The node is ready. True: now all workers are, and the epoch may train.
  bool on_ready(Participant& participant, Nanoseconds now, JobActions& actions);
  /// Training starts. `stopped`: for how long it had stood still; nothing when it did not.
  void begin_training(std::optional<Nanoseconds> stopped, Nanoseconds now, JobActions& actions);

 private:
  bool repeats_plan() const;
  bool keeps_schemes() const;
  bool repeats_source_plan() const;
  void begin_calibration(Nanoseconds now, JobActions& actions);
  void go_on_calibrating(Nanoseconds now, JobActions& actions);
  void make_plan(std::optional<Calibration> calibration, Nanoseconds now, JobActions& actions);
  void tell_of_plan(Nanoseconds now, JobActions& actions);
  void keep_plan(JobActions& actions);
  void forget_untrained_data();

  JobContext& job_;
  Saving& saving_;
  Ending& ending_;
};

}  // namespace poseidon
