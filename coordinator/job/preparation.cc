#include "coordinator/job/preparation.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/job/plan_memory.h"
#include "coordinator/planning/local_groups.h"

namespace poseidon {
namespace {

std::vector<NodeInfo> nodes_of(const std::vector<Participant>& participants) {
  std::vector<NodeInfo> nodes;
  for (const Participant& p : participants) nodes.push_back(p.node);
  return nodes;
}

}  // namespace

void Preparation::begin(Nanoseconds now, JobActions& actions) {
  const JobDescription& job = job_.description;
  const Roster& roster = job_.roster();
  const auto workers = static_cast<std::uint32_t>(roster.workers.size());
  if (job_.staffing.begun_with() == 0) {
    job_.staffing.set_begun_with(workers);
    // Later, with fewer servers, there are fewer copies, and the run goes on.
    if (const absl::Status copies = check_replicas(job.checkpoints.replicas, roster.servers.size());
        !copies.ok()) {
      job_.roster().clear();  // nobody has heard of the job
      ending_.fail(std::string(copies.message()), now, actions);
      return;
    }
  }
  if (job.with_workers) {
    absl::StatusOr<ElasticJob> elastic = job.with_workers(job_.staffing.begun_with(), workers);
    if (!elastic.ok()) {
      ending_.fail(std::string(elastic.status().message()), now, actions);
      return;
    }
    job_.run->elastic = *std::move(elastic);
  }
  if (repeats_plan()) {
    make_plan(std::nullopt, now, actions);
    return;
  }
  if (repeats_source_plan()) {
    job_.run->plan_basis = absl::StrCat("the schemes of ", job_.source.text());
    make_plan(std::nullopt, now, actions);
    return;
  }
  const std::string why_not =
      job.why_no_calibration(addresses_of(roster.workers), addresses_of(roster.servers));
  if (why_not.empty()) {
    begin_calibration(now, actions);
  } else {
    job_.run->plan_basis = absl::StrCat("not calibrated: ", why_not);
    make_plan(std::nullopt, now, actions);
  }
}

// ---- calibrating ----

void Preparation::begin_calibration(Nanoseconds now, JobActions& actions) {
  const Roster& roster = job_.roster();
  job_.states.transition(JobEvent::kMeasure, now);
  job_.run->calibration.emplace(job_.options.calibration, nodes_of(roster.workers),
                                nodes_of(roster.servers), job_.description.layers, job_.iterations,
                                now);
  job_.log(absl::StrFormat(
               "enough nodes are here; measuring %d workers, %d servers and the network (epoch %d)",
               roster.workers.size(), roster.servers.size(), job_.run->epoch.value()),
           actions);
  go_on_calibrating(now, actions);
}

void Preparation::tick(Nanoseconds now, JobActions& actions) {
  job_.run->calibration->tick(now);
  go_on_calibrating(now, actions);
}

void Preparation::go_on_calibrating(Nanoseconds now, JobActions& actions) {
  CalibrationRun& calibration = *job_.run->calibration;
  for (CalibrationTask& task : calibration.take_tasks()) {
    actions.emplace_back(SendCalibrate{std::move(task)});
  }
  job_.message = absl::StrCat(calibration.what(), job_.last_failure_text());
  if (!calibration.done()) return;
  absl::StatusOr<Calibration> measured = calibration.result();
  job_.run->calibration.reset();
  if (measured.ok()) {
    job_.run->plan_basis =
        absl::StrFormat("measured in %.1f s before this job", seconds(job_.states.in_state(now)));
    make_plan(*std::move(measured), now, actions);
  } else {
    job_.run->plan_basis = absl::StrCat("not calibrated: ", measured.status().message());
    make_plan(std::nullopt, now, actions);
  }
}

void Preparation::on_calibration(const Participant& from, const CalibrationAnswer& answer,
                                 Nanoseconds now, JobActions& actions) {
  if (job_.state() != JobState::kCalibrating) {
    refuse(actions, Refusal::kWrongState,
           absl::StrFormat("CalibrationReport from %s; job %s is %s", participant_text(from),
                           job_.description.id, job_state_name(job_.state())));
    return;
  }
  if (const auto refused = job_.run->calibration->on_answer(from.node.id, answer, now)) {
    refuse(actions, refused->refusal, refused->text);
  }
  go_on_calibrating(now, actions);
}

// ---- the plan ----

/// The plan in force is for as many nodes.
bool Preparation::repeats_plan() const {
  return keeps_schemes() && job_.run->plan->servers() == job_.roster().servers.size();
}

/// The plan in force is for as many workers: the run goes on to the same bytes, however many
/// servers there are now, by the same schemes and by sums of the same groups.
bool Preparation::keeps_schemes() const {
  return job_.run->plan && job_.run->plan->workers() == job_.workers().size();
}

/// As many workers as the checkpoint had: by its schemes the run goes on to the same bytes,
/// whatever the number of servers.
bool Preparation::repeats_source_plan() const {
  const CheckpointManifest* const source = job_.source.manifest();
  return !job_.run->plan && source != nullptr && source->workers == job_.workers().size();
}

void Preparation::make_plan(std::optional<Calibration> calibration, Nanoseconds now,
                            JobActions& actions) {
  EpochRun& run = *job_.run;
  const Roster& roster = job_.roster();
  const bool repeated = repeats_plan() && !calibration;
  // A plan that takes the other's place was made for as many nodes.
  const std::optional<Plan> next_plan = std::exchange(run.next_plan, std::nullopt);
  const std::shared_ptr<const Plan> like =
      repeated && next_plan ? std::make_shared<const Plan>(*next_plan) : run.plan;
  std::optional<PlanPin> keep;
  std::optional<std::vector<WorkerRank>> leaders;
  const bool has_schemes = keeps_schemes();
  if (has_schemes) {
    keep = pin_of(*like);
    leaders = run.plan->leaders;
  } else if (repeats_source_plan()) {
    keep = job_.source.manifest()->plan;
    leaders = job_.source.manifest()->plan.leaders;
  }
  const EarlierPlan* const earlier = keep ? nullptr : job_.plans.find(machines_digest(roster));
  absl::StatusOr<Plan> plan =
      job_.description.make_plan({.epoch = run.epoch,
                                  .batch_size = run.elastic.batch_size,
                                  .workers = addresses_of(roster.workers),
                                  .servers = addresses_of(roster.servers),
                                  .worker_machines = machines_of(roster.workers),
                                  .server_machines = machines_of(roster.servers),
                                  .calibration = std::move(calibration),
                                  .keep = std::move(keep),
                                  .leaders = std::move(leaders),
                                  .earlier = earlier ? std::optional(*earlier) : std::nullopt});
  if (!plan.ok()) {
    // Only nodes that were told of the epoch are told of its end.
    if (job_.state() != JobState::kCalibrating) job_.roster().clear();
    ending_.fail(absl::StrCat("the job cannot be planned: ", plan.status().message()), now,
                 actions);
    return;
  }
  if (repeated) {  // with all that is known of it
    plan->calibration = like->calibration;
    plan->prediction = like->prediction;
    for (std::size_t l = 0; l < plan->layers.size(); ++l) {
      plan->layers[l].prediction = like->layers[l].prediction;
    }
  }
  if (has_schemes) {
    for (std::size_t l = 0; l < plan->layers.size(); ++l) {
      plan->layers[l].reason = like->layers[l].reason;
    }
  }
  if (run.plan || job_.source.manifest() != nullptr) {
    actions.emplace_back(RollBackMetrics{run.first_iteration});
  }
  if (earlier != nullptr) {
    const std::string compared = compare_with_earlier(*earlier, *plan, job_.description.id);
    if (!compared.empty()) absl::StrAppend(&run.plan_basis, "; ", compared);
  }
  run.plan = std::make_shared<const Plan>(*std::move(plan));
  tell_of_plan(now, actions);
}

/// Servers get their assignments first; workers get theirs when all servers are ready.
void Preparation::tell_of_plan(Nanoseconds now, JobActions& actions) {
  const EpochRun& run = *job_.run;
  const Roster& roster = job_.roster();
  forget_untrained_data();
  saving_.begin_epoch(actions);
  job_.states.transition(JobEvent::kPlanned, now);
  job_.message =
      absl::StrCat("prepares ", roster.servers.size(), " servers", job_.last_failure_text());
  job_.log(absl::StrCat("the plan is made (", run.plan_basis, ")"), actions);
  if (const std::string groups = groups_text(run.plan->leaders); !groups.empty()) {
    job_.log(absl::StrCat("gradients of ", groups,
                          " are summed before they go to the servers (sync.local_aggregation)"),
             actions);
  }
  job_.log(absl::StrFormat("preparing %d servers, then %d workers (epoch %d)",
                           roster.servers.size(), roster.workers.size(), run.epoch.value()),
           actions);
  actions.emplace_back(WriteFile{.name = "plan.json", .contents = plan_to_json(*run.plan)});
  for (const Participant& server : roster.servers) {
    actions.emplace_back(SendAssignment{.node = server.node.id, .index = server.index});
  }
}

/// So that the next run of the job can be like this one. What was not measured needs no memory: the
/// byte rule gives the same plan each time.
void Preparation::keep_plan(JobActions& actions) {
  const Plan& plan = *job_.run->plan;
  if (job_.description.plans.key.empty() || !plan.calibration || !plan.calibration->measured) {
    return;
  }
  EarlierPlan kept = earlier_plan(plan, job_.description.id);
  if (kept.schemes.empty()) return;
  if (!job_.plans.remember(machines_digest(job_.roster()), std::move(kept))) return;
  actions.emplace_back(KeepPlans{job_.plans.to_json()});
}

// ---- getting ready ----

/// Until the run has trained, no worker's data are the run's: the worker that named them may be
/// gone.
void Preparation::forget_untrained_data() {
  if (job_.has_trained()) return;
  job_.data.forget();
  const CheckpointManifest* const source = job_.source.manifest();
  if (source == nullptr || !source->data) return;
  job_.data.set_checkpoint(*source->data, job_.source.text());
}

std::string Preparation::check_data(const Participant& worker, const DataIdentity& found,
                                    JobActions& actions) {
  TrainingData::Answer answer = job_.data.on_found({.name = participant_text(worker),
                                                    .is_new = worker.is_new,
                                                    .run_started = job_.has_trained()},
                                                   found);
  if (!answer.remark.empty()) job_.log(answer.remark, actions, LogLine::Kind::kAlarm);
  return std::move(answer.refusal);
}

bool Preparation::may_be_ready(const Participant& participant, JobActions& actions) const {
  if (participant.state != ParticipantState::kPreparing) {
    refuse(actions, Refusal::kDuplicate,
           absl::StrCat("Ready again from ", participant_text(participant)));
    return false;
  }
  const bool is_turn = participant.node.role == NodeRole::kServer
                           ? job_.state() == JobState::kPreparingServers
                           : job_.state() == JobState::kPreparingWorkers;
  if (!is_turn) {
    refuse(actions, Refusal::kWrongState,
           absl::StrCat("Ready before its turn from ", participant_text(participant)));
  }
  return is_turn;
}

bool Preparation::on_ready(Participant& participant, Nanoseconds now, JobActions& actions) {
  participant.state = ParticipantState::kReady;
  participant.is_new = false;
  const Roster& roster = job_.roster();
  if (job_.state() == JobState::kPreparingWorkers) {
    return all_in(roster.workers, ParticipantState::kReady);
  }
  if (!all_in(roster.servers, ParticipantState::kReady)) return false;
  job_.states.transition(JobEvent::kServersReady, now);
  job_.message =
      absl::StrCat("prepares ", roster.workers.size(), " workers", job_.last_failure_text());
  for (const Participant& worker : roster.workers) {
    actions.emplace_back(SendAssignment{.node = worker.node.id, .index = worker.index});
  }
  return false;
}

void Preparation::begin_training(std::optional<Nanoseconds> stopped, Nanoseconds now,
                                 JobActions& actions) {
  const EpochRun& run = *job_.run;
  job_.states.transition(JobEvent::kWorkersReady, now);
  job_.staffing.on_trained();
  keep_plan(actions);
  job_.checkpoints.set_data(job_.data.identity());
  job_.source.set_lines_lost(false);
  job_.message.clear();
  job_.last_failure.clear();
  job_.pace.begin_epoch(now, run.first_iteration);
  job_.roster().set_all(ParticipantState::kRunning);
  for (const Participant& worker : job_.workers()) {
    actions.emplace_back(SendStart{worker.node.id});
  }
  std::string where = "starts";
  if (stopped) {
    where = absl::StrFormat("goes on at iteration %d, %.1f s after it stopped", run.first_iteration,
                            seconds(*stopped));
  } else if (job_.source.manifest() != nullptr) {
    where =
        absl::StrFormat("goes on at iteration %d (%s)", run.first_iteration, job_.source.text());
  }
  job_.log(
      absl::StrFormat("every node is ready, training %s: %d iterations, %d workers of batch %d",
                      where, job_.iterations, job_.workers().size(), run.elastic.batch_size),
      actions, stopped ? LogLine::Kind::kRecovery : LogLine::Kind::kJob);
}

}  // namespace poseidon
