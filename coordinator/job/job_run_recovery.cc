// The recovery's part of JobRun: what happens when a node is lost, and changes of a training job
// (job_run.cc has the job's life, job_run_checkpoint.cc what checkpoints are made of).

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/job/job_run.h"

namespace poseidon {
namespace {

/// A change so near to the end would gain nothing.
constexpr Iteration kLeastIterationsLeft = 4;

const char* plural(std::size_t n) { return n == 1 ? "" : "s"; }

}  // namespace

// ---- a node is lost ----

std::size_t JobRun::fewest_workers() const {
  return static_cast<std::size_t>(std::max<std::int64_t>(description_.min_workers, 1));
}

/// `in_memory`: what is lost is a worker, so that everything else may still be there.
void JobRun::recover(EpochEnd what, const std::string& reason, bool in_memory, Nanoseconds now,
                     JobActions& actions) {
  recovering_from_ = reason;
  actions.emplace_back(
      LogLine{absl::StrCat("job ", description_.id, ": ", reason), LogLine::Kind::kRecovery});
  // Whoever is lost on the way back has its time to come back, too; for newcomers that cannot take
  // part nobody waits longer.
  const bool is_loss = what == EpochEnd::kWorkerLost || what == EpochEnd::kServerLost;
  if (recovery_ && is_loss) recovery_->vacant_since = now;
  if (!recovery_) {
    recovery_.emplace(now);
    ++recoveries_;
    ++counts_.of(what);
  } else if (what == EpochEnd::kNodeUnfit || what == EpochEnd::kCheckpointUnreadable) {
    ++counts_.of(what);  // it mostly happens on the way back
  }
  if (!job_goes(state(), JobEvent::kEpochOver)) {  // it is over already
    try_replacing(now, actions);
    return;
  }
  switch (state()) {
    case JobState::kSaving:
      if (is_stored()) return;  // who is lost now takes none of it along
      break;
    case JobState::kHalting:
      break;
    default:
      if (what == EpochEnd::kNodeUnfit) break;  // each time it is longer until it may try again
      idle_recoveries_.count(first_iteration_, now);
      if (const std::optional<std::string> times = idle_recoveries_.too_often()) {
        end(false,
            absl::StrCat(reason, "; the job recovered ", *times,
                         " without finishing an iteration that was new"),
            now, actions);
        return;
      }
  }
  if (in_memory && state() == JobState::kRunning) {
    states_.transition(JobEvent::kHalt, now);
    message_ = absl::StrCat("recovers: ", reason, "; halts the others");
    for (const auto* group : {&workers_, &servers_}) {
      for (const Participant& p : *group) {
        if (!is_lost(p)) actions.emplace_back(SendHalt{p.node.id});
      }
    }
    halted_all(now, actions);
  } else if (in_memory && state() == JobState::kHalting) {
    halted_all(now, actions);
  } else {
    calibration_.reset();
    replace(now, actions);
  }
}

JobActions JobRun::on_halted(NodeId from, Epoch epoch, const HeldVersions& held, Nanoseconds now) {
  JobActions actions;
  Participant* participant = expect_participant(from, epoch, "Halted", actions);
  if (participant == nullptr) return actions;
  // An earlier coordinator had asked for it, and so have we.
  if (participant->state == ParticipantState::kHalted) return actions;
  if (state() == JobState::kRunning) {
    // An earlier coordinator had asked for it, and died before that was on its disk.
    recover(EpochEnd::kWorkerLost,
            absl::StrCat(participant_text(*participant),
                         " was halted before this coordinator went on with the job"),
            /*in_memory=*/true, now, actions);
  }
  if (state() != JobState::kHalting) {
    refuse(actions, Refusal::kWrongState,
           absl::StrFormat("Halted from %s; job %s is %s", participant_text(*participant),
                           description_.id, job_state_name(state())));
    return actions;
  }
  participant->state = ParticipantState::kHalted;
  recovery_->held[from] = held;
  halted_all(now, actions);
  return actions;
}

/// Once all that are there have halted: which version they can give together, and where to take it
/// from.
void JobRun::halted_all(Nanoseconds now, JobActions& actions) {
  const auto together = recovery_->held_together(first_iteration_, workers_, servers_);
  if (!together) return;
  const auto [oldest, newest] = *together;
  // Not beyond what everybody, also who is lost, has told of: each line of the metrics is written.
  Iteration version = std::min(newest, run_->iterations.completed());
  if (const auto test = run_->tests.oldest_pending()) version = std::min(version, *test);
  if (version < oldest) {
    fall_back(absl::StrFormat("the others hold iterations %d to %d, and the metrics are complete "
                              "up to %d",
                              oldest, newest, version),
              now, actions);
    return;
  }
  if (version == first_iteration_ ||
      checkpoints_.committed().contains(snapshot_id(epoch_, version))) {
    replace(now, actions);
    return;
  }
  const bool by_sfb = std::any_of(run_->plan->layers.begin(), run_->plan->layers.end(),
                                  [](const auto& l) { return l.scheme == Scheme::kSfb; });
  if (by_sfb && std::all_of(workers_.begin(), workers_.end(), is_lost)) {
    fall_back("every worker is lost, and with them the layers that go by SFB", now, actions);
    return;
  }
  states_.transition(JobEvent::kSave, now);
  recovery_->saving = version;
  checkpoints_.need(snapshot_id(epoch_, version));
  message_ = absl::StrCat("recovers: ", recovering_from_, "; saves iteration ", version);
  carry_out(checkpoints_.ask_held(version, now), actions);
  after_checkpoint_event(now, actions);
}

void JobRun::fall_back(const std::string& why, Nanoseconds now, JobActions& actions) {
  if (stopping_) {
    replace(now, actions);
    return;
  }
  const std::vector<const CheckpointManifest*> usable = usable_checkpoints();
  actions.emplace_back(LogLine{
      absl::StrFormat("job %s: %s; goes back to %s", description_.id, why,
                      usable.empty()
                          ? "the beginning: there is no checkpoint"
                          : absl::StrCat("checkpoint ", snapshot_name(usable.back()->snapshot))),
      LogLine::Kind::kRecovery});
  replace(now, actions);
}

/// The epoch is over; the next one begins when there are nodes and a source.
void JobRun::replace(Nanoseconds now, JobActions& actions) {
  give_up_unwritten(actions);
  if (stopping_) {
    stopping_->until = now;  // nothing more is to come
    settle_stop(now, actions);
    return;
  }
  states_.transition(JobEvent::kEpochOver, now);
  end_epoch(false, absl::StrCat("the job recovers: ", recovering_from_), actions);
  try_replacing(now, actions);
}

// ---- who takes whose place ----

/// By ServerIndex; "" where a store is not here. Nothing when a piece is in none that is.
std::optional<std::vector<std::string>> JobRun::addresses_of_stores(
    const CheckpointManifest& manifest) const {
  std::vector<std::string> addresses;
  std::vector<bool> here;
  for (const std::string& store : manifest.stores) {
    addresses.push_back(store_address(members_, store));
    here.push_back(!addresses.back().empty());
  }
  if (!is_reachable(manifest, here)) return std::nullopt;
  return addresses;
}

/// What an epoch may begin from, newest last: readable, of this course, and not beyond what the
/// metrics tell of: a worker that was out of reach may have taken its reports with it. Where there
/// is none such because an earlier process's disk has lost lines, the others, if they are worth
/// more than the first checkpoint: training is worth more than lines of metrics.
std::vector<const CheckpointManifest*> JobRun::usable_checkpoints() const {
  std::vector<const CheckpointManifest*> told, unreported;
  for (const auto& [snapshot, manifest] : checkpoints_.committed()) {
    if (!checkpoints_.is_usable(snapshot)) continue;
    const bool is_told = !run_ || manifest.iteration() <= run_->iterations.completed();
    (is_told ? told : unreported).push_back(&manifest);
  }
  const bool takes_unreported = lines_are_lost_ && told.empty() && !unreported.empty() &&
                                unreported.back()->iteration() > description_.checkpoint_every;
  return takes_unreported ? unreported : told;
}

/// The newest checkpoint that can be read, or the beginning where there never was one. `in_time`:
/// only the newest will do, its servers may still come. first_iteration_ and samples_ stay those of
/// the epoch that ended, with which it is recorded, until another begins.
bool JobRun::choose_source(bool in_time, std::string& missing) {
  source_.reset();
  source_addresses_.clear();
  std::vector<const CheckpointManifest*> usable = usable_checkpoints();
  if (usable.empty() && !checkpoints_.any_unreadable()) return true;
  for (; !usable.empty(); usable.pop_back()) {
    const CheckpointManifest& manifest = *usable.back();
    std::optional<std::vector<std::string>> addresses = addresses_of_stores(manifest);
    if (addresses) {
      source_ = manifest;
      source_addresses_ = *std::move(addresses);
      checkpoints_.need(source_->snapshot);
      return true;
    }
    if (missing.empty() || !in_time) {
      const auto is_here = [this](const std::string& store) {
        return !store_address(members_, store).empty();
      };
      absl::StrAppend(&missing, missing.empty() ? "" : ", ", missing_stores(manifest, is_here));
    }
    if (in_time) return false;
  }
  if (missing.empty()) missing = "a checkpoint that can be read";
  return false;
}

/// Puts members without a part into the places of those that are lost. A lost server's place waits
/// for whoever has its data, unless it is there and only out of others' reach. When there was time
/// enough, the places that are left go, but not as long as there is nothing to go on from: then a
/// lost server will have to come back.
bool JobRun::fill_vacancies(bool in_time, bool needed, std::string& missing, Nanoseconds now) {
  const auto fill = [](Participant& p, const NodeInfo& node) {
    p.node = node;
    p.state = ParticipantState::kWaiting;
    p.is_new = true;
    p.is_untried = true;
    p.is_cut_off = false;
    p.kept_until = 0;
  };
  // First who is where the vacant place's group is.
  for (Participant& p : workers_) {
    if (!is_lost(p)) continue;
    if (const NodeInfo* node = idle_beside_group(p, needed, now)) fill(p, *node);
  }
  std::vector<std::string> vacant;
  for (auto* group : {&workers_, &servers_}) {
    for (Participant& p : *group) {
      if (!is_lost(p)) continue;
      const bool is_server = p.node.role == NodeRole::kServer;
      const bool waits_for_data = is_server && in_time && !p.is_cut_off;
      const std::string* store = waits_for_data ? &p.node.store_identity : nullptr;
      const NodeInfo* node = next_idle(p.node.role, store, needed, now);
      if (node == nullptr) node = itself_again(p, needed, now);
      if (node != nullptr) {
        fill(p, *node);
      } else {
        vacant.push_back(participant_text(p));
      }
    }
  }
  missing = absl::StrJoin(vacant, ", ");
  if (vacant.empty()) return true;
  if (in_time) return false;
  const auto left = [](const std::vector<Participant>& group) {
    return static_cast<std::size_t>(std::count_if(
        group.begin(), group.end(), [](const Participant& p) { return !is_lost(p); }));
  };
  if (left(servers_) == 0) return false;
  std::size_t fitting = left(workers_);
  while (fitting >= fewest_workers() && !allows_workers(fitting)) --fitting;
  if (fitting < fewest_workers()) return false;
  if (std::string awaited; !choose_source(in_time, awaited)) {
    missing = awaited;
    return false;
  }
  for (auto* group : {&workers_, &servers_}) {
    std::erase_if(*group, is_lost);
    // Others are idle until there are enough for the next allowed number.
    if (group == &workers_) group->resize(fitting);
    for (std::uint32_t i = 0; i < group->size(); ++i) (*group)[i].index = i;
  }
  missing.clear();
  return true;
}

void JobRun::try_replacing(Nanoseconds now, JobActions& actions) {
  if (next_epoch_.is_under_way() && next_epoch_.waited(now) > options_.recovery_timeout) {
    end(false,
        absl::StrFormat("the job cannot recover (%s): the coordinator's state directory has not "
                        "taken the number of a new epoch for %.0f s: is its disk in order?",
                        recovering_from_, seconds(next_epoch_.waited(now))),
        now, actions);
    return;
  }
  if (!next_epoch_.is_due(now)) return;
  const Nanoseconds waited = now - recovery_->vacant_since;
  const bool in_time = waited < description_.replace_timeout;
  const Nanoseconds most_waited = description_.replace_timeout + options_.recovery_timeout;
  std::string missing;
  bool all_there = fill_vacancies(in_time, /*needed=*/false, missing, now);
  // Nobody else is there: rather one with mishaps than none, as long as the job waits at all.
  if (!all_there && !in_time && waited <= most_waited) {
    all_there = fill_vacancies(in_time, /*needed=*/true, missing, now);
  }
  if (all_there && choose_source(in_time, missing)) {
    add_workers(now);
    next_epoch_.ask(now);
    message_ = absl::StrCat("recovers: ", recovering_from_, "; begins a new epoch");
    actions.emplace_back(TakeEpoch{});
    return;
  }
  if (checkpoints_.any_unreadable() && usable_checkpoints().empty()) {
    end(false,
        absl::StrCat(recovering_from_, description_.source
                                           ? "; an operator may choose another checkpoint, if "
                                             "there is one (poseidon checkpoint list, restore)"
                                           : "; no other checkpoint is left, and from the "
                                             "beginning it should not go on by itself: submit the "
                                             "job again for that"),
        now, actions);
    return;
  }
  message_ = absl::StrFormat("recovers: %s; waits for %s", recovering_from_, missing);
  for (const NodeInfo& node : members_) {
    if (has_place(node.id) || !would_slow_all(node)) continue;
    absl::StrAppend(&message_, "; ", node_text(node),
                    " is here, but on its CPU, and all others would wait for it: is its GPU gone?");
    break;
  }
  if (waited <= most_waited) return;
  end(false,
      absl::StrFormat(
          "%s; after %.0f s there is still no %s%s", recovering_from_, seconds(waited), missing,
          checkpoints_.newest() == nullptr
              ? ""
              : absl::StrCat("; checkpoint ", snapshot_name(checkpoints_.newest()->snapshot),
                             " is kept: `poseidon checkpoint restore` goes on from it")),
      now, actions);
}

JobActions JobRun::on_epoch(const absl::StatusOr<std::uint64_t>& epoch, Nanoseconds now) {
  JobActions actions;
  // Of this job's predecessor of the same name, perhaps.
  if (!next_epoch_.answer()) return actions;
  if (state() == JobState::kWaiting) return on_epoch_instead(epoch, now);
  if (state() != JobState::kReplacing) return actions;  // ended meanwhile
  if (!epoch.ok()) {
    // The disk may have room again soon, and everybody waits.
    const std::string why(epoch.status().message());
    if (!waits_for_disk(now)) {
      end(false,
          absl::StrCat("the job cannot recover (", recovering_from_, "): no new epoch: ", why), now,
          actions);
      return actions;
    }
    if (next_epoch_.refused(why, now)) {
      actions.emplace_back(LogLine{
          absl::StrCat("job ", description_.id, " waits for a new epoch: ", why, "; tries again"),
          LogLine::Kind::kAlarm});
    }
    message_ = absl::StrCat("recovers: ", recovering_from_, "; waits for a new epoch: ", why);
    return actions;
  }
  next_epoch_.granted();
  // A newer one may have got to the disk just before.
  if (const auto usable = usable_checkpoints();
      !usable.empty() && (!source_ || source_->snapshot != usable.back()->snapshot)) {
    std::string missing;
    choose_source(/*in_time=*/false, missing);
  }
  const bool all_there = std::none_of(workers_.begin(), workers_.end(), is_lost) &&
                         std::none_of(servers_.begin(), servers_.end(), is_lost) &&
                         (!source_ || (addresses_of_stores(*source_) &&
                                       checkpoints_.committed().contains(source_->snapshot)));
  // Somebody left while the epoch was written down, or a newer checkpoint took the place of the
  // source; the number is not used.
  if (!all_there) {
    try_replacing(now, actions);
    return actions;
  }
  epoch_ = Epoch(*epoch);
  first_iteration_ = source_ ? source_->iteration() : 0;
  samples_ = source_ ? source_->samples : 0;
  for (auto* group : {&workers_, &servers_}) {
    for (Participant& p : *group) {
      p.state = ParticipantState::kPreparing;
      p.kept_until = 0;
    }
  }
  actions.emplace_back(LogLine{absl::StrFormat(
      "job %s: epoch %d begins at iteration %d (%s) with %d worker%s and %d server%s",
      description_.id, epoch_.value(), first_iteration_,
      source_ ? absl::StrCat("checkpoint ", snapshot_name(source_->snapshot)) : "the beginning",
      workers_.size(), plural(workers_.size()), servers_.size(), plural(servers_.size()))});
  for (const Participant& p : workers_) {
    if (!p.is_new || !would_slow_all(p.node)) continue;
    actions.emplace_back(
        LogLine{absl::StrCat("job ", description_.id, ": ", participant_text(p),
                             " computes on its CPU, the others on GPUs: all will wait for it"),
                LogLine::Kind::kAlarm});
  }
  // Who was cut off from here has not told of all that the others have.
  const Iteration finished =
      run_ ? std::max(run_->iterations.completed(), run_->iterations.newest() - 1) : 0;
  if (run_ && finished > first_iteration_) {
    actions.emplace_back(LogLine{absl::StrFormat("job %s: %d finished iterations are made again",
                                                 description_.id, finished - first_iteration_)});
  } else if (run_ && run_->iterations.completed() < first_iteration_) {
    actions.emplace_back(LogLine{
        absl::StrFormat("job %s: metrics.jsonl has nothing of iterations %d to %d: who could tell "
                        "of them is lost, and no earlier checkpoint is there",
                        description_.id, run_->iterations.completed(), first_iteration_ - 1),
        LogLine::Kind::kAlarm});
  }
  checkpoints_.abandon_beyond(first_iteration_, epoch_);
  change_.reset();
  change_after_ = now + options_.change_pause;
  loss_.reset();
  model_stored_ = false;
  begin_planning(now, actions);
  return actions;
}

// ---- more workers, a better plan ----

std::size_t JobRun::most_workers() const {
  const auto wanted = static_cast<std::size_t>(description_.workers > 0 ? description_.workers
                                                                        : description_.max_workers);
  return std::min(wanted, most_that_fit_);
}

bool JobRun::allows_workers(std::size_t count) const {
  if (!description_.with_workers || begun_with_ == 0) return true;
  return description_.with_workers(begun_with_, static_cast<std::uint32_t>(count)).ok();
}

/// Those without a part, as many as the job takes.
void JobRun::add_workers(Nanoseconds now) {
  if (!run_ || !description_.with_workers) return;  // the first epoch has chosen its own
  std::size_t count = std::min(workers_.size() + idle_workers(now), most_workers());
  while (count > workers_.size() && !allows_workers(count)) --count;
  while (workers_.size() < count) {
    workers_.push_back({.node = *next_idle(NodeRole::kWorker, nullptr, /*needed=*/false, now),
                        .index = static_cast<std::uint32_t>(workers_.size()),
                        .state = ParticipantState::kWaiting,
                        .is_new = true,
                        .is_untried = true});
  }
}

/// New members while the job trains: they are taken in, from a checkpoint, after a while.
void JobRun::consider_growth(Nanoseconds now, JobActions& actions) {
  if (change_ || stopping_ || !description_.with_workers || workers_.size() >= most_workers())
    return;
  const std::size_t most = std::min(workers_.size() + idle_workers(now), most_workers());
  bool any = false;
  for (std::size_t count = workers_.size() + 1; count <= most && !any; ++count) {
    any = allows_workers(count);
  }
  if (!any) return;
  change_ = {.why = absl::StrFormat("%d more worker%s came", most - workers_.size(),
                                    plural(most - workers_.size())),
             .plan = std::nullopt,
             .at = std::nullopt};
  change_after_ = std::max(change_after_, now + options_.growth_delay);
  actions.emplace_back(LogLine{absl::StrCat("job ", description_.id, ": ", change_->why)});
}

/// A change begins with a checkpoint, for which nobody waits: should it fail, training goes on.
void JobRun::tick_change(Nanoseconds now, JobActions& actions) {
  if (state() != JobState::kRunning || is_trained() || stopping_) return;
  if (!change_) consider_growth(now, actions);
  if (!change_ || now < change_after_) return;
  if (!change_->at) {
    absl::StatusOr<CheckpointActions> asked = absl::OutOfRangeError("the run is about to end");
    if (run_->iterations.completed() + kLeastIterationsLeft < description_.iterations) {
      asked = checkpoints_.ask(run_->iterations.newest(), now);
    }
    if (!asked.ok()) {  // or an operator's save is under way: later
      change_after_ = now + options_.growth_delay;
      return;
    }
    change_->at = checkpoints_.asked_for();
    carry_out(*std::move(asked), actions);
  } else if (checkpoints_.asked_for()) {
    change_->at = checkpoints_.asked_for();  // it was too late, and is asked for again
  } else {
    change_now(now, actions);
    const bool waits_for_reports =
        change_ && checkpoints_.committed().contains(snapshot_id(epoch_, *change_->at));
    if (!change_ || waits_for_reports) return;
    change_.reset();
    change_after_ = now + options_.change_pause;
  }
}

/// If its checkpoint is there, and the metrics reach it.
void JobRun::change_now(Nanoseconds now, JobActions& actions) {
  if (!change_->at || !checkpoints_.committed().contains(snapshot_id(epoch_, *change_->at))) return;
  if (run_->iterations.completed() < *change_->at) return;
  // Who came may be gone again; and a run that is all but over is not gone back for.
  const bool is_worth_it =
      run_->iterations.completed() + kLeastIterationsLeft < description_.iterations;
  if (!is_worth_it || (!change_->plan && idle_workers(now) == 0)) {
    change_.reset();
    change_after_ = now + options_.change_pause;
    return;
  }
  recovering_from_ = change_->why;
  recovery_.emplace(now);
  ++counts_.of(change_->plan ? EpochEnd::kBetterPlan : EpochEnd::kMoreWorkers);
  recovery_->next_plan = std::move(change_->plan);
  change_.reset();
  replace(now, actions);
}

// ---- time ----

void JobRun::tick_recovery(Nanoseconds now, JobActions& actions) {
  const Nanoseconds in_state = states_.in_state(now);
  write_again(now, actions);
  if (is_trained()) {
    finish_if_complete(now, actions);
    if (ended() || states_.quiet(now) <= options_.last_checkpoint_timeout) return;
    actions.emplace_back(
        LogLine{absl::StrFormat(
                    "job %s: training is done, but its last checkpoint is not whole after %.0f s",
                    description_.id, seconds(states_.quiet(now))),
                LogLine::Kind::kAlarm});
    end(true, "", now, actions);
    return;
  }
  if (state() == JobState::kHalting && in_state > options_.halting_timeout) {
    std::vector<std::string> silent;
    for (const auto* group : {&workers_, &servers_}) {
      for (const Participant& p : *group) {
        if (!is_lost(p) && p.state != ParticipantState::kHalted) {
          silent.push_back(participant_text(p));
        }
      }
    }
    fall_back(absl::StrFormat("after %.0f s not halted: %s", seconds(in_state),
                              absl::StrJoin(silent, ", ")),
              now, actions);
  } else if (state() == JobState::kSaving && in_state > options_.saving_timeout &&
             !(unwritten_.contains(snapshot_id(epoch_, recovery_->saving)) &&
               waits_for_disk(now))) {
    fall_back(absl::StrFormat("what is in memory was not saved within %.0f s", seconds(in_state)),
              now, actions);
  } else if (state() == JobState::kReplacing) {
    try_replacing(now, actions);
  }
}

}  // namespace poseidon
