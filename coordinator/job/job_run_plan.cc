// The plan's part of JobRun: what is measured for it, how it is made, and whether another one would
// be better (job_run.cc has the job's life).

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "coordinator/job/job_run.h"
#include "coordinator/planning/local_groups.h"

namespace poseidon {

/// Once the epoch's nodes are chosen. As long as the plan in force fits them it is repeated, so
/// that the run goes on as it would have: by the same schemes, to the same bytes.
void JobRun::begin_planning(Nanoseconds now, JobActions& actions) {
  const auto workers = static_cast<std::uint32_t>(workers_.size());
  if (begun_with_ == 0) {
    begun_with_ = workers;
    // Later, with fewer servers, there are fewer copies, and the run goes on.
    if (const absl::Status copies = check_replicas(description_.replicas, servers_.size());
        !copies.ok()) {
      workers_.clear();  // nobody has heard of the job
      servers_.clear();
      end(false, std::string(copies.message()), now, actions);
      return;
    }
  }
  if (description_.with_workers) {
    absl::StatusOr<ElasticJob> elastic = description_.with_workers(begun_with_, workers);
    if (!elastic.ok()) {
      end(false, std::string(elastic.status().message()), now, actions);
      return;
    }
    elastic_ = *std::move(elastic);
  }
  if (run_ && run_->plan->workers() == workers_.size() &&
      run_->plan->servers() == servers_.size()) {
    make_plan(std::nullopt, now, actions);
    return;
  }
  if (repeats_source_plan()) {
    plan_basis_ = absl::StrCat("the schemes of checkpoint ", snapshot_name(source_->snapshot));
    make_plan(std::nullopt, now, actions);
    return;
  }
  const std::string why_not =
      description_.why_no_calibration(addresses(workers_), addresses(servers_));
  if (why_not.empty()) {
    begin_calibration(now, actions);
  } else {
    plan_basis_ = absl::StrCat("not calibrated: ", why_not);
    make_plan(std::nullopt, now, actions);
  }
}

// ---- calibrating ----

void JobRun::begin_calibration(Nanoseconds now, JobActions& actions) {
  const auto nodes = [](const std::vector<Participant>& participants) {
    std::vector<NodeInfo> infos;
    for (const Participant& p : participants) infos.push_back(p.node);
    return infos;
  };
  states_.transition(JobEvent::kMeasure, now);
  calibration_.emplace(options_.calibration, nodes(workers_), nodes(servers_), description_.layers,
                       description_.iterations, now);
  actions.emplace_back(LogLine{absl::StrFormat(
      "job %s: enough nodes are here; measuring %d workers, %d servers and the network (epoch %d)",
      description_.id, workers_.size(), servers_.size(), epoch_.value())});
  go_on_calibrating(now, actions);
}

void JobRun::go_on_calibrating(Nanoseconds now, JobActions& actions) {
  for (CalibrationTask& task : calibration_->take_tasks()) {
    actions.emplace_back(SendCalibrate{std::move(task)});
  }
  message_ = calibration_->what();
  if (!calibration_->done()) return;
  absl::StatusOr<Calibration> measured = calibration_->result();
  calibration_.reset();
  if (measured.ok()) {
    plan_basis_ =
        absl::StrFormat("measured in %.1f s before this job", seconds(states_.in_state(now)));
    make_plan(*std::move(measured), now, actions);
  } else {
    plan_basis_ = absl::StrCat("not calibrated: ", measured.status().message());
    make_plan(std::nullopt, now, actions);
  }
}

JobActions JobRun::on_calibration(NodeId from, Epoch epoch, const CalibrationAnswer& answer,
                                  Nanoseconds now) {
  JobActions actions;
  const Participant* participant = expect_participant(from, epoch, "CalibrationReport", actions);
  if (participant == nullptr) return actions;
  if (state() != JobState::kCalibrating) {
    refuse(
        actions, Refusal::kWrongState,
        absl::StrFormat("CalibrationReport from %s; job %s is %s", participant_text(*participant),
                        description_.id, job_state_name(state())));
    return actions;
  }
  if (const auto refused = calibration_->on_answer(from, answer, now)) {
    refuse(actions, refused->refusal, refused->text);
  }
  go_on_calibrating(now, actions);
  return actions;
}

void JobRun::make_plan(std::optional<Calibration> calibration, Nanoseconds now,
                       JobActions& actions) {
  const bool repeated = run_ && run_->plan->workers() == workers_.size() &&
                        run_->plan->servers() == servers_.size() && !calibration;
  std::optional<Plan> next_plan;
  if (recovery_) next_plan = std::exchange(recovery_->next_plan, std::nullopt);
  // A plan that takes the other's place was made for as many nodes.
  const std::shared_ptr<const Plan> like =
      repeated && next_plan ? std::make_shared<const Plan>(*next_plan) : plan();
  // With as many workers the run goes on to the same bytes, however many servers there are now: by
  // the same schemes, and sums of the same groups.
  std::optional<PlanPin> keep;
  std::optional<std::vector<WorkerRank>> leaders;
  const bool keeps_schemes = run_ && run_->plan->workers() == workers_.size();
  if (keeps_schemes) {
    keep = pin_of(*like);
    leaders = run_->plan->leaders;
  } else if (repeats_source_plan()) {
    keep = source_->plan;
    leaders = source_->plan.leaders;
  }
  absl::StatusOr<Plan> plan = description_.make_plan({.epoch = epoch_,
                                                      .batch_size = elastic_.batch_size,
                                                      .workers = addresses(workers_),
                                                      .servers = addresses(servers_),
                                                      .worker_machines = machines(workers_),
                                                      .server_machines = machines(servers_),
                                                      .calibration = std::move(calibration),
                                                      .keep = std::move(keep),
                                                      .leaders = std::move(leaders)});
  if (!plan.ok()) {
    const bool told = state() == JobState::kCalibrating;  // only who has heard of it hears its end
    if (!told) {
      workers_.clear();
      servers_.clear();
    }
    end(false, absl::StrCat("the job cannot be planned: ", plan.status().message()), now, actions);
    return;
  }
  if (repeated) {  // with all that is known of it
    plan->calibration = like->calibration;
    plan->prediction = like->prediction;
    for (std::size_t l = 0; l < plan->layers.size(); ++l) {
      plan->layers[l].prediction = like->layers[l].prediction;
    }
  }
  if (keeps_schemes) {
    for (std::size_t l = 0; l < plan->layers.size(); ++l) {
      plan->layers[l].reason = like->layers[l].reason;
    }
  }
  const auto workers = static_cast<std::uint32_t>(workers_.size());
  if (run_ || source_) actions.emplace_back(RollBackMetrics{first_iteration_});
  run_.emplace(std::make_shared<const Plan>(*std::move(plan)), workers, first_iteration_, 0);
  forget_untrained_data();
  carry_out(checkpoints_.begin_epoch(epoch_, first_iteration_, manifest_frame(),
                                     workers * static_cast<std::uint64_t>(elastic_.batch_size)),
            actions);
  states_.transition(JobEvent::kPlanned, now);
  message_ = absl::StrCat("prepares ", servers_.size(), " servers");
  actions.emplace_back(
      LogLine{absl::StrFormat("job %s: the plan is made (%s)", description_.id, plan_basis_)});
  if (const std::string groups = groups_text(run_->plan->leaders); !groups.empty()) {
    actions.emplace_back(
        LogLine{absl::StrFormat("job %s: gradients of %s are summed before they go to the servers "
                                "(sync.local_aggregation)",
                                description_.id, groups)});
  }
  actions.emplace_back(
      LogLine{absl::StrFormat("job %s: preparing %d servers, then %d workers (epoch %d)",
                              description_.id, servers_.size(), workers_.size(), epoch_.value())});
  actions.emplace_back(WriteFile{.name = "plan.json", .contents = plan_to_json(*run_->plan)});
  for (const Participant& server : servers_) {
    actions.emplace_back(SendAssignment{.node = server.node.id, .index = server.index});
  }
}

// ---- whether another plan would be better ----

JobActions JobRun::on_measured_times(const std::vector<LayerTimes>& times, Nanoseconds now) {
  JobActions actions;
  if (state() != JobState::kRunning || !run_->plan->calibration || !description_.consider_replan) {
    return actions;
  }
  const absl::StatusOr<ReplanDecision> decision =
      description_.consider_replan(*run_->plan, times, run_->replan);
  if (!decision.ok()) {
    actions.emplace_back(
        LogLine{absl::StrCat("job ", description_.id, ": the plan is not compared (",
                             decision.status().message(), ")")});
    return actions;
  }
  run_->replan = decision->state;
  if (!decision->plan) return actions;
  std::vector<std::string> changes;
  for (std::size_t l = 0; l < run_->plan->layers.size(); ++l) {
    if (decision->plan->layers[l].scheme == run_->plan->layers[l].scheme) continue;
    changes.push_back(absl::StrCat(run_->plan->layers[l].name, " by ",
                                   std::string(scheme_name(decision->plan->layers[l].scheme))));
  }
  if (changes.empty()) changes.emplace_back("chunks on other servers");
  // Said once, not whenever a number has moved a little.
  const std::string what = absl::StrJoin(changes, ", ");
  const bool said = absl::StartsWith(run_->recommendation, what + ":");
  run_->recommendation = absl::StrCat(what, ": ", seconds_text(decision->better_s), " instead of ",
                                      seconds_text(decision->now_s), " per iteration");
  if (!said) {
    actions.emplace_back(
        WriteFile{.name = "plan.recommended.json", .contents = plan_to_json(*decision->plan)});
    actions.emplace_back(LogLine{absl::StrCat("job ", description_.id, ": a better plan: ",
                                              run_->recommendation, " (", decision->reason, ")")});
  }
  const bool may = description_.replan && plan_changes_ < options_.max_plan_changes;
  if (may && !change_ && now >= change_after_) {
    ++plan_changes_;
    change_ = {.why = absl::StrCat("a better plan: ", run_->recommendation),
               .plan = *decision->plan,
               .at = std::nullopt};
  }
  return actions;
}

}  // namespace poseidon
