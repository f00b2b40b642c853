#include "coordinator/job/planned_change.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "coordinator/job/staffing/leavers.h"

namespace poseidon {
namespace {

/// A change so near to the end would gain nothing.
constexpr Iteration kLeastIterationsLeft = 4;
/// Where workers join and leave all the time, the job stands still for a tenth of it at most.
constexpr int kLeastTimesTheCost = 9;

/// For a node that is told so; none of it is the node's fault.
bool has_nodes(JobState state) {
  return state == JobState::kRunning || state == JobState::kCalibrating ||
         state == JobState::kPreparingServers || state == JobState::kPreparingWorkers;
}

}  // namespace

void PlannedChange::consider_leaving(Nanoseconds now, JobActions& actions) {
  if (job_.state() == JobState::kReplacing) vacate_leaving(job_.staffing.members(), job_.roster());
  if (!has_nodes(job_.state()) || ending_.is_trained() || ending_.is_stopping()) return;
  const std::string leaving = leaving_text(job_.roster(), job_.staffing.members());
  if (leaving.empty()) return;
  drop();
  recovery_.recover(EpochEnd::kNodeLeaves, absl::StrCat(leaving, " leaves"), /*in_memory=*/true,
                    now, actions);
}

/// A checkpoint that needs a server that leaves is no use once it is gone: asks for another one,
/// which the servers of the new epoch store.
void PlannedChange::relieve_leaving(Nanoseconds now, JobActions& actions) {
  if (now < relieve_after_ || job_.checkpoints.asked_for()) return;
  const CheckpointManifest* const newest = job_.checkpoints.newest_usable();
  if (newest == nullptr || leaving_holders(job_.staffing.members(), *newest).empty()) return;
  relieve_after_ = now + job_.options.ask_pause;
  if (auto asked = job_.checkpoints.ask(job_.run->iterations.newest(), now); asked.ok()) {
    saving_.carry_out(*std::move(asked), actions);
  }
}

/// Whether the time that a growth saves is longer than the job stands still for it, which is as
/// long as the last time.
bool PlannedChange::pays_to_grow(std::size_t workers, Nanoseconds now) const {
  const double images_per_s = job_.pace.images_per_s(now);
  if (images_per_s <= 0.0) return true;
  const auto has = static_cast<double>(job_.workers().size());
  const double iteration_s = has * static_cast<double>(job_.run->elastic.batch_size) / images_per_s;
  const auto left = static_cast<double>(job_.iterations - job_.run->iterations.completed());
  const double saved_s = left * iteration_s * (1.0 - has / static_cast<double>(workers));
  return saved_s > seconds(recovery_.change_cost());
}

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
  if (!any || !is_worth_it() || !pays_to_grow(most, now)) return;
  const CheckpointManifest* const newest = job_.checkpoints.newest();
  change_ = {.why = absl::StrFormat("%d more worker%s came", most - workers,
                                    most - workers == 1 ? "" : "s"),
             .plan = std::nullopt,
             .due = now + job_.options.growth_delay,
             .at = std::nullopt,
             .newest_then = newest == nullptr ? SnapshotId() : newest->snapshot};
  job_.log(change_->why, actions);
}

/// Its chunks and the copies of checkpoints are spread anew when the next epoch begins.
void PlannedChange::plan_for_servers(std::size_t servers, Nanoseconds now, JobActions& actions) {
  change_ = {.why = absl::StrFormat("%d more server%s came", servers, servers == 1 ? "" : "s"),
             .is_for_servers = true,
             .plan = std::nullopt,
             .due = now + job_.options.server_delay,
             .at = std::nullopt,
             .newest_then = SnapshotId()};
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
  const bool may = job_.description.plans.replan && plan_changes_ < job_.options.max_plan_changes;
  if (may && !change_ && now >= std::max(change_after_, replan_after_)) {
    ++plan_changes_;
    change_ = {.why = absl::StrCat("a better plan: ", run.recommendation),
               .plan = *decision->plan,
               .due = now,
               .at = std::nullopt,
               .newest_then = SnapshotId()};
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
  relieve_leaving(now, actions);
  if (!change_) consider_growth(now, actions);
  if (!change_ || now < not_before()) return;
  if (!change_->at) {
    if (now >= change_->due) ask_for_checkpoint(now, actions);
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
    put_off(now + job_.options.ask_pause);
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
  return job_.run->iterations.completed() + kLeastIterationsLeft < job_.iterations;
}

/// The change that is planned is not made sooner. Servers that are missing do not wait until the
/// last change has paid.
Nanoseconds PlannedChange::not_before() const {
  if (change_->is_for_servers) return servers_after_;
  return std::max(change_after_,
                  recovery_.trains_since() + kLeastTimesTheCost * recovery_.change_cost());
}

void PlannedChange::put_off(Nanoseconds until) {
  (change_->is_for_servers ? servers_after_ : change_after_) = until;
}

/// More workers are taken in at a periodic checkpoint, if one is committed before they are due.
void PlannedChange::take_next_checkpoint() {
  const CheckpointManifest* const newest = job_.checkpoints.newest();
  if (change_->at || change_->plan || change_->is_for_servers || newest == nullptr) return;
  if (newest->snapshot == change_->newest_then ||
      snapshot_epoch(newest->snapshot) != job_.run->epoch)
    return;
  change_->at = newest->iteration();
}

void PlannedChange::on_checkpoint(Nanoseconds now, JobActions& actions) {
  if (!change_ || now < not_before()) return;
  take_next_checkpoint();
  if (!is_committed()) return;
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
  replan_after_ = now + job_.options.change_pause;
}

std::string PlannedChange::newcomer_note(Nanoseconds now) const {
  const Staffing& staffing = job_.staffing;
  if (job_.state() != JobState::kRunning || ending_.is_trained() || ending_.is_stopping())
    return "";
  if (!change_) {
    const std::size_t most = staffing.most_workers(now);
    const bool could = !staffing.is_full() && most > job_.workers().size();
    const bool pays = !could || (is_worth_it() && pays_to_grow(most, now));
    return pays ? "" : "stands by: the job ends before another worker would save time";
  }
  if (change_->plan || change_->is_for_servers) return "";
  if (change_->at) return absl::StrCat("joins when checkpoint ", *change_->at, " is saved");
  const Nanoseconds due = std::max(change_->due, not_before());
  return absl::StrFormat("joins in %.0f s, or at the next checkpoint",
                         std::ceil(seconds(std::max(due - now, Nanoseconds{0}))));
}

void PlannedChange::give_up(Nanoseconds now) {
  if (!change_) return;
  put_off(now + job_.options.change_pause);
  change_.reset();
}

}  // namespace poseidon
