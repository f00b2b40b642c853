#include "coordinator/job/planned_change.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

/// A change so near to the end would gain nothing.
constexpr Iteration kLeastIterationsLeft = 4;

}  // namespace

void PlannedChange::consider_growth(Nanoseconds now, JobActions& actions) {
  const Staffing& staffing = job_.staffing;
  if (change_ || ending_.is_stopping()) return;
  if (const std::size_t servers = staffing.servers_to_add(now); servers > 0) {
    plan_for_servers(servers, now, actions);
    return;
  }
  if (staffing.is_full()) return;
  const std::size_t workers = job_.workers().size();
  const std::size_t most = staffing.most_workers(now);
  bool any = false;
  for (std::size_t count = workers + 1; count <= most && !any; ++count) {
    any = staffing.allows_workers(count);
  }
  if (!any) return;
  change_ = {.why = absl::StrFormat("%d more worker%s came", most - workers,
                                    most - workers == 1 ? "" : "s"),
             .plan = std::nullopt,
             .at = std::nullopt};
  change_after_ = std::max(change_after_, now + job_.options.growth_delay);
  job_.log(change_->why, actions);
}

/// Its chunks and the copies of checkpoints are spread anew when the next epoch begins.
void PlannedChange::plan_for_servers(std::size_t servers, Nanoseconds now, JobActions& actions) {
  change_ = {.why = absl::StrFormat("%d more server%s came", servers, servers == 1 ? "" : "s"),
             .is_for_servers = true,
             .plan = std::nullopt,
             .at = std::nullopt};
  servers_after_ = std::max(servers_after_, now + job_.options.growth_delay);
  job_.log(change_->why, actions);
}

void PlannedChange::on_measured_times(const std::vector<LayerTimes>& times, Nanoseconds now,
                                      JobActions& actions) {
  EpochRun& run = *job_.run;
  if (job_.state() != JobState::kRunning || !run.plan->calibration ||
      !job_.description.consider_replan) {
    return;
  }
  const absl::StatusOr<ReplanDecision> decision =
      job_.description.consider_replan(*run.plan, times, run.replan);
  if (!decision.ok()) {
    job_.log(absl::StrCat("the plan is not compared (", decision.status().message(), ")"), actions);
    return;
  }
  run.replan = decision->state;
  if (!decision->plan) return;
  compare_plans(*decision, actions);
  const bool may = job_.description.replan && plan_changes_ < job_.options.max_plan_changes;
  if (may && !change_ && now >= change_after_) {
    ++plan_changes_;
    change_ = {.why = absl::StrCat("a better plan: ", run.recommendation),
               .plan = *decision->plan,
               .at = std::nullopt};
  }
}

/// Shows what the better plan would change. Said once, not whenever a number has moved a little.
void PlannedChange::compare_plans(const ReplanDecision& decision, JobActions& actions) {
  EpochRun& run = *job_.run;
  std::vector<std::string> changes;
  for (std::size_t l = 0; l < run.plan->layers.size(); ++l) {
    if (decision.plan->layers[l].scheme == run.plan->layers[l].scheme) continue;
    changes.push_back(absl::StrCat(run.plan->layers[l].name, " by ",
                                   std::string(scheme_name(decision.plan->layers[l].scheme))));
  }
  if (changes.empty()) changes.emplace_back("chunks on other servers");
  const std::string what = absl::StrJoin(changes, ", ");
  const bool said = absl::StartsWith(run.recommendation, what + ":");
  run.recommendation = absl::StrCat(what, ": ", seconds_text(decision.better_s), " instead of ",
                                    seconds_text(decision.now_s), " per iteration");
  if (said) return;
  actions.emplace_back(
      WriteFile{.name = "plan.recommended.json", .contents = plan_to_json(*decision.plan)});
  job_.log(absl::StrCat("a better plan: ", run.recommendation, " (", decision.reason, ")"),
           actions);
}

void PlannedChange::tick(Nanoseconds now, JobActions& actions) {
  if (job_.state() != JobState::kRunning || ending_.is_trained() || ending_.is_stopping()) return;
  if (!change_) consider_growth(now, actions);
  if (!change_ || now < not_before()) return;
  if (!change_->at) {
    ask_for_checkpoint(now, actions);
  } else if (job_.checkpoints.asked_for()) {
    change_->at = job_.checkpoints.asked_for();  // it was too late, and is asked for again
  } else {
    on_checkpoint(now, actions);
    if (change_ && !is_committed()) give_up(now);  // else the reports do not reach it yet
  }
}

void PlannedChange::ask_for_checkpoint(Nanoseconds now, JobActions& actions) {
  absl::StatusOr<CheckpointActions> asked = absl::OutOfRangeError("the run is about to end");
  if (is_worth_it()) asked = job_.checkpoints.ask(job_.run->iterations.newest(), now);
  if (!asked.ok()) {  // or an operator's save is under way: later
    not_before() = now + job_.options.growth_delay;
    return;
  }
  change_->at = job_.checkpoints.asked_for();
  saving_.carry_out(*std::move(asked), actions);
}

bool PlannedChange::is_committed() const {
  return change_->at &&
         job_.checkpoints.committed().contains(snapshot_id(job_.run->epoch, *change_->at));
}

/// A run that is all but over is not gone back for.
bool PlannedChange::is_worth_it() const {
  return job_.run->iterations.completed() + kLeastIterationsLeft < job_.description.iterations;
}

void PlannedChange::on_checkpoint(Nanoseconds now, JobActions& actions) {
  if (!change_ || !is_committed()) return;
  if (job_.run->iterations.completed() < *change_->at) return;
  // Nodes that came may be gone again.
  const std::size_t came =
      change_->is_for_servers ? job_.staffing.servers_to_add(now) : job_.staffing.idle_workers(now);
  if (!is_worth_it() || (!change_->plan && came == 0)) {
    give_up(now);
    return;
  }
  const EpochEnd what = change_->plan             ? EpochEnd::kBetterPlan
                        : change_->is_for_servers ? EpochEnd::kMoreServers
                                                  : EpochEnd::kMoreWorkers;
  job_.run->next_plan = std::move(change_->plan);
  const std::string why = std::exchange(change_, std::nullopt)->why;
  recovery_.change_over(what, why, now, actions);
}

void PlannedChange::on_epoch_begun(Nanoseconds now) {
  change_.reset();
  change_after_ = now + job_.options.change_pause;
}

void PlannedChange::give_up(Nanoseconds now) {
  not_before() = now + job_.options.change_pause;
  change_.reset();
}

}  // namespace poseidon
