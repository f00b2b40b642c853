#pragma once

// What is in force while a job recovers: it halts, saves and replaces. Pure.
//
// Called by: job_run.h builds it at the first loss, and drops it when the next epoch
// trains.
// Calls: nothing.

#include <map>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/plan/plan.h"
#include "coordinator/job/participant.h"

namespace poseidon {

/// One thread only. A job that ended while it recovered keeps it.
struct Recovery {
  explicit Recovery(Nanoseconds now) : since(now), vacant_since(now) {}

  /// Which versions all nodes that are not lost can give, no older than `first`. Nothing as long as
  /// one of them has not halted.
  std::optional<HeldVersions> held_together(Iteration first,
                                            const std::vector<Participant>& workers,
                                            const std::vector<Participant>& servers) const;
  /// So long nobody could be heard.
  void extend_deadlines(Nanoseconds duration, Nanoseconds now);

  Nanoseconds since;         ///< when the epoch stopped
  Nanoseconds vacant_since;  ///< since when places wait to be filled; later with every loss
  std::map<NodeId, HeldVersions> held;  ///< of those that have halted
  Iteration saving = 0;                 ///< while saving: the version
  std::optional<Plan> next_plan;        ///< for the next epoch, instead of the one in force
};

}  // namespace poseidon
