#pragma once

// What is kept of the plans of earlier runs of one job, so that the next run gives the same bytes
// where that costs next to nothing. Pure.
//
// Called by: coordinator/cluster/submissions.h reads it as the job is submitted; preparation.h asks
// it before it makes a plan, and adds to it when training begins.
// Calls: coordinator/planning/planner.h for the plan's form.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "coordinator/job/staffing/roster.h"
#include "coordinator/planning/planner.h"

namespace poseidon {

/// A digest of how many nodes there are, which of them share a machine, and the workers' devices.
/// Neither addresses nor the order of nodes change it.
std::string machines_digest(const Roster& roster);

/// One plan for each kind of cluster that the job ran on. One thread only.
class PlanMemory {
 public:
  static constexpr std::size_t kMostPlans = 16;
  static constexpr std::size_t kMaxBytes = 1 << 20;  ///< of the file

  /// INVALID_ARGUMENT or DATA_LOSS for what to_json cannot have written; starts with `source`.
  static absl::StatusOr<PlanMemory> from_json(std::string_view text, std::string_view source);
  std::string to_json() const;

  /// Null: the job never ran on such machines.
  const EarlierPlan* find(const std::string& machines) const;
  /// It takes the place of an earlier one for such machines, or of the oldest. False: it is there
  /// already.
  bool remember(const std::string& machines, EarlierPlan plan);

 private:
  struct Entry {
    std::string machines;
    EarlierPlan plan;
  };
  std::vector<Entry> entries_;  ///< the oldest first
};

/// What is to be kept of a plan.
EarlierPlan earlier_plan(const Plan& plan, const std::string& job_id);

/// Whether the plan has the schemes of the earlier one, for people. If not: which layers go
/// otherwise, and the line of the job file that gives the earlier ones. "" where the earlier plan
/// is of other layers. `job_id`: of the job that has the plan.
std::string compare_with_earlier(const EarlierPlan& earlier, const Plan& plan,
                                 const std::string& job_id);

}  // namespace poseidon
