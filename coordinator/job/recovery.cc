#include "coordinator/job/recovery.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/node/job_reports.h"
#include "coordinator/job/staffing/leavers.h"

namespace poseidon {
namespace {

/// Its nodes are chosen, and it does not train yet.
bool is_before_training(JobState state) {
  return state == JobState::kCalibrating || state == JobState::kPreparingServers ||
         state == JobState::kPreparingWorkers;
}

const char* plural(std::size_t n) { return n == 1 ? "" : "s"; }

}  // namespace

// ---- the epoch ends ----

void Recovery::recover(EpochEnd what, const std::string& reason, bool in_memory, Nanoseconds now,
                       JobActions& actions) {
  reason_ = reason;
  if (is_before_training(job_.state())) job_.last_failure = reason;
  job_.log(reason, actions, LogLine::Kind::kRecovery);
  // A node that is lost during a recovery has the full time to return, too. A newcomer that cannot
  // take part does not extend that time.
  const bool is_loss = what == EpochEnd::kWorkerLost || what == EpochEnd::kServerLost;
  if (interruption_ && is_loss) interruption_->vacant_since = now;
  if (!interruption_) {
    interruption_.emplace(now);
    if (what != EpochEnd::kNodeLeaves) ++recoveries_;
    ++counts_.of(what);
  } else if (what == EpochEnd::kNodeUnfit || what == EpochEnd::kCheckpointUnreadable) {
    ++counts_.of(what);  // it mostly happens on the way back
  }
  if (!job_goes(job_.state(), JobEvent::kEpochOver)) {  // it is over already
    try_replacing(now, actions);
    return;
  }
  if (is_stored()) return;  // a node that is lost now takes none of it along
  const bool halts = job_.state() == JobState::kHalting || job_.state() == JobState::kSaving;
  // A node that is unfit has to wait longer each time until it may try again.
  const bool may_be_idle = !halts && what != EpochEnd::kNodeUnfit && what != EpochEnd::kNodeLeaves;
  if (may_be_idle && recovers_too_often(reason, now, actions)) return;
  if (in_memory && job_.state() == JobState::kRunning) {
    halt(reason, now, actions);
  } else if (in_memory && job_.state() == JobState::kHalting) {
    halted_all(now, actions);
  } else {
    replace(now, actions);
  }
}

/// Ends the job if it did.
bool Recovery::recovers_too_often(const std::string& reason, Nanoseconds now, JobActions& actions) {
  idle_recoveries_.count(job_.run->first_iteration, now);
  const std::optional<std::string> times = idle_recoveries_.too_often();
  if (!times) return false;
  ending_.fail(absl::StrCat(reason, "; the job recovered ", *times,
                            " without finishing an iteration that was new"),
               now, actions);
  return true;
}

void Recovery::change_over(EpochEnd what, const std::string& why, Nanoseconds now,
                           JobActions& actions) {
  reason_ = why;
  interruption_.emplace(now);
  ++counts_.of(what);
  replace(now, actions);
}

void Recovery::fall_back(const std::string& why, Nanoseconds now, JobActions& actions) {
  if (!ending_.is_stopping()) {
    const std::vector<const CheckpointManifest*> usable = job_.usable_checkpoints();
    const std::string where =
        usable.empty() ? "the beginning: there is no checkpoint"
                       : absl::StrCat("checkpoint ", snapshot_name(usable.back()->snapshot));
    job_.log(absl::StrCat(why, "; goes back to ", where), actions, LogLine::Kind::kRecovery);
  }
  replace(now, actions);
}

void Recovery::resume(const std::string& from, bool is_over, Nanoseconds now) {
  reason_ = from;
  interruption_.emplace(now);
  ++recoveries_;
  job_.message =
      absl::StrCat("recovers: ", reason_, "; the coordinator was started again meanwhile");
  if (is_over) job_.roster().set_all(ParticipantState::kLost);
  job_.states.transition(is_over ? JobEvent::kEpochOver : JobEvent::kHalt, now);
}

// ---- halting and saving ----

void Recovery::halt(const std::string& reason, Nanoseconds now, JobActions& actions) {
  job_.states.transition(JobEvent::kHalt, now);
  job_.message = absl::StrCat("recovers: ", reason, "; halts the others");
  for (const auto* group : job_.roster().groups()) {
    for (const Participant& p : *group) {
      if (!is_lost(p)) actions.emplace_back(SendHalt{p.node.id});
    }
  }
  halted_all(now, actions);
}

void Recovery::on_halted(Participant& participant, const HeldVersions& held, Nanoseconds now,
                         JobActions& actions) {
  // An earlier coordinator had asked for it, and so have we.
  if (participant.state == ParticipantState::kHalted) return;
  if (job_.state() == JobState::kRunning) {
    // An earlier coordinator had asked for it, and died before that was on its disk.
    recover(EpochEnd::kWorkerLost,
            absl::StrCat(participant_text(participant),
                         " was halted before this coordinator went on with the job"),
            /*in_memory=*/true, now, actions);
  }
  if (job_.state() != JobState::kHalting) {
    refuse(actions, Refusal::kWrongState,
           absl::StrFormat("Halted from %s; job %s is %s", participant_text(participant),
                           job_.description.id, job_state_name(job_.state())));
    return;
  }
  participant.state = ParticipantState::kHalted;
  interruption_->held[participant.node.id] = held;
  halted_all(now, actions);
}

/// Which versions all nodes that are not lost can give. Nothing as long as one of them has not
/// halted.
std::optional<HeldVersions> Recovery::held_together() const {
  HeldVersions together{.oldest = job_.run->first_iteration,
                        .newest = std::numeric_limits<Iteration>::max()};
  for (const auto* group : std::as_const(job_).roster().groups()) {
    for (const Participant& p : *group) {
      if (is_lost(p)) continue;
      if (p.state != ParticipantState::kHalted) return std::nullopt;
      const auto found = interruption_->held.find(p.node.id);
      const HeldVersions its = found == interruption_->held.end() ? HeldVersions{} : found->second;
      together.oldest = std::max(together.oldest, its.oldest);
      together.newest = std::min(together.newest, its.newest);
    }
  }
  return together;
}

/// When all that are there have halted: saves the newest version that they can give together, or
/// goes on from a checkpoint.
void Recovery::halted_all(Nanoseconds now, JobActions& actions) {
  const auto together = held_together();
  if (!together) return;
  const EpochRun& run = *job_.run;
  const auto [oldest, newest] = *together;
  // Not beyond what every worker, lost or not, has told of: each line of the metrics is written.
  Iteration version = std::min(newest, run.iterations.completed());
  if (const auto test = run.tests.oldest_pending()) version = std::min(version, *test);
  if (version < oldest) {
    fall_back(absl::StrFormat("the others hold iterations %d to %d, and the metrics are complete "
                              "up to %d",
                              oldest, newest, version),
              now, actions);
    return;
  }
  if (version == run.first_iteration ||
      job_.checkpoints.committed().contains(snapshot_id(run.epoch, version))) {
    replace(now, actions);
    return;
  }
  const bool by_sfb = std::ranges::any_of(
      run.plan->layers, [](const PlanLayer& layer) { return layer.scheme == Scheme::kSfb; });
  if (by_sfb && std::ranges::all_of(job_.workers(), is_lost)) {
    fall_back("every worker is lost, and with them the layers that go by SFB", now, actions);
    return;
  }
  job_.states.transition(JobEvent::kSave, now);
  interruption_->saving = version;
  job_.message = absl::StrCat("recovers: ", reason_, "; saves iteration ", version);
  saving_.save_held(version, now, actions);
  look_for_saved(now, actions);
}

void Recovery::look_for_saved(Nanoseconds now, JobActions& actions) {
  if (job_.state() != JobState::kSaving) return;
  const SnapshotId wanted = snapshot_id(job_.run->epoch, interruption_->saving);
  const std::optional<CheckpointOutcome>& last = job_.checkpoints.last();
  if (job_.checkpoints.committed().contains(wanted)) {
    replace(now, actions);
  } else if (last && last->snapshot == wanted && !last->committed) {
    fall_back(absl::StrCat("what is in memory could not be saved: ", last->reason), now, actions);
  }
}

bool Recovery::is_stored() const {
  return job_.state() == JobState::kSaving &&
         job_.checkpoints.being_written(snapshot_id(job_.run->epoch, interruption_->saving)) !=
             nullptr;
}

/// As long as for a new epoch's number: without room for the one there is none for the other. A
/// job that is stopping has the time that the operator gave it.
bool Recovery::waits_for_disk(Nanoseconds now) const {
  if (ending_.is_stopping()) return ending_.has_patience(now);
  if (!interruption_) return false;  // nothing is held for the disk
  return now - interruption_->vacant_since <= most_waited();
}

/// Those that have not halted, for people.
std::string Recovery::silent_text() const {
  std::vector<std::string> silent;
  for (const auto* group : std::as_const(job_).roster().groups()) {
    for (const Participant& p : *group) {
      if (!is_lost(p) && p.state != ParticipantState::kHalted) {
        silent.push_back(participant_text(p));
      }
    }
  }
  return absl::StrJoin(silent, ", ");
}

void Recovery::tick(Nanoseconds now, JobActions& actions) {
  const Nanoseconds in_state = job_.states.in_state(now);
  if (job_.state() == JobState::kHalting && in_state > job_.options.halting_timeout) {
    fall_back(absl::StrFormat("after %.0f s not halted: %s", seconds(in_state), silent_text()), now,
              actions);
  } else if (job_.state() == JobState::kSaving && in_state > job_.options.saving_timeout) {
    const SnapshotId wanted = snapshot_id(job_.run->epoch, interruption_->saving);
    if (saving_.is_unwritten(wanted) && waits_for_disk(now)) return;
    fall_back(absl::StrFormat("what is in memory was not saved within %.0f s", seconds(in_state)),
              now, actions);
  } else if (job_.state() == JobState::kReplacing) {
    try_replacing(now, actions);
  }
}

// ---- replacing ----

/// The epoch is over; the next one begins when there are nodes and a source.
void Recovery::replace(Nanoseconds now, JobActions& actions) {
  saving_.give_up_unwritten(actions);
  if (ending_.is_stopping()) {
    ending_.settle_without_waiting(now, actions);
    return;
  }
  job_.states.transition(JobEvent::kEpochOver, now);
  ending_.end_epoch(false, absl::StrCat(kJobRecovers, reason_), actions);
  vacate_leaving(job_.staffing.members(), job_.roster());
  try_replacing(now, actions);
}

/// When there was time enough, the places that are left go; but not as long as there is nothing to
/// go on from: then a lost server will have to come back.
bool Recovery::fill_vacancies(bool in_time, bool needed, Nanoseconds now, std::string& missing) {
  missing = job_.staffing.fill_vacancies(
      {.now = now, .in_time = in_time, .needed = needed, .plan = job_.run->plan.get()});
  if (missing.empty()) return true;
  if (in_time) return false;
  const bool may_close = job_.staffing.may_close_vacancies();
  if (std::string stores; !choose_source(in_time, stores)) {
    missing = may_close ? stores : absl::StrCat(missing, ", ", stores);
    return false;
  }
  if (!may_close) return false;
  job_.staffing.close_vacancies();
  missing.clear();
  return true;
}

/// JobContext::run stays that of the epoch that ended, with which it is recorded, until another one
/// begins.
bool Recovery::choose_source(bool in_time, std::string& missing) {
  return job_.source.choose(job_.staffing.members(), job_.run->told(), in_time, missing);
}

void Recovery::try_replacing(Nanoseconds now, JobActions& actions) {
  DiskRequest& next = job_.next_epoch;
  if (next.is_under_way() && next.waited(now) > job_.options.recovery_timeout) {
    ending_.fail(
        absl::StrFormat("the job cannot recover (%s): the coordinator's state directory has not "
                        "taken the number of a new epoch for %.0f s: is its disk in order?",
                        reason_, seconds(next.waited(now))),
        now, actions);
    return;
  }
  if (!next.is_due(now)) return;
  const Nanoseconds waited = now - interruption_->vacant_since;
  const bool in_time =
      waited < job_.description.replace_timeout && !only_leaving_are_missing(job_.roster());
  std::string missing;
  bool all_there = fill_vacancies(in_time, /*needed=*/false, now, missing);
  // Nobody else is there: rather one with mishaps than none, as long as the job waits at all.
  if (!all_there && !in_time && waited <= most_waited()) {
    all_there = fill_vacancies(in_time, /*needed=*/true, now, missing);
  }
  if (!all_there || !choose_source(in_time, missing)) {
    wait_for(missing, now, actions);
    return;
  }
  if (job_.run->plan) {  // the first epoch has chosen its own
    job_.staffing.add_workers(now);
    job_.staffing.add_servers(now);
  }
  next.ask(now);
  job_.message = absl::StrCat("recovers: ", reason_, "; begins a new epoch");
  actions.emplace_back(TakeEpoch{});
}

/// Nodes or stores are missing. Ends the job when that cannot help or has lasted too long.
void Recovery::wait_for(const std::string& missing, Nanoseconds now, JobActions& actions) {
  if (job_.checkpoints.any_unreadable() && job_.usable_checkpoints().empty()) {
    const char* const advice =
        job_.description.source
            ? "; an operator may choose another checkpoint, if there is one (poseidon checkpoint "
              "list, restore)"
            : "; no other checkpoint is left, and from the beginning it should not go on by "
              "itself: submit the job again for that";
    ending_.fail(absl::StrCat(reason_, advice), now, actions);
    return;
  }
  job_.message = absl::StrFormat("recovers: %s; waits for %s", reason_, missing);
  for (const NodeInfo& node : job_.staffing.members()) {
    if (job_.roster().has_place(node.id) || !job_.staffing.would_slow_all(node)) continue;
    absl::StrAppend(&job_.message, "; ", node_text(node),
                    " is here, but on its CPU, and all others would wait for it: is its GPU gone?");
    break;
  }
  const Nanoseconds waited = now - interruption_->vacant_since;
  if (waited <= most_waited()) return;
  const CheckpointManifest* const newest = job_.checkpoints.newest();
  const std::string kept =
      newest == nullptr ? ""
                        : absl::StrCat("; checkpoint ", snapshot_name(newest->snapshot),
                                       " is kept: `poseidon checkpoint restore` goes on from it");
  ending_.fail(absl::StrFormat("%s; after %.0f s there is still no %s%s", reason_, seconds(waited),
                               missing, kept),
               now, actions);
}

/// The disk may have room again soon, and everybody waits.
void Recovery::on_epoch_refused(const std::string& why, Nanoseconds now, JobActions& actions) {
  if (!waits_for_disk(now)) {
    ending_.fail(absl::StrCat("the job cannot recover (", reason_, "): no new epoch: ", why), now,
                 actions);
    return;
  }
  if (job_.next_epoch.refused(why, now)) {
    actions.emplace_back(LogLine{
        absl::StrCat("job ", job_.description.id, " waits for a new epoch: ", why, "; tries again"),
        LogLine::Kind::kAlarm});
  }
  job_.message = absl::StrCat("recovers: ", reason_, "; waits for a new epoch: ", why);
}

bool Recovery::on_epoch(const absl::StatusOr<std::uint64_t>& epoch, Nanoseconds now,
                        JobActions& actions) {
  if (job_.state() != JobState::kReplacing) return false;  // the job has ended meanwhile
  if (!epoch.ok()) {
    on_epoch_refused(std::string(epoch.status().message()), now, actions);
    return false;
  }
  job_.next_epoch.granted();
  // A newer checkpoint may have got to the disk just before.
  const std::vector<const CheckpointManifest*> usable = job_.usable_checkpoints();
  const CheckpointManifest* const source = job_.source.manifest();
  if (!usable.empty() && (source == nullptr || source->snapshot != usable.back()->snapshot)) {
    std::string missing;
    choose_source(/*in_time=*/false, missing);
  }
  // Somebody left while the epoch was written down, or a newer checkpoint took the place of the
  // source; the number is not used.
  if (!job_.roster().is_complete() || !job_.source.is_here(job_.staffing.members())) {
    try_replacing(now, actions);
    return false;
  }
  begin_epoch(Epoch(*epoch), now, actions);
  return true;
}

void Recovery::begin_epoch(Epoch epoch, Nanoseconds now, JobActions& actions) {
  begun_at_ = now;
  const std::unique_ptr<EpochRun> over = std::move(job_.run);
  const Roster& roster = job_.roster();
  job_.run =
      std::make_unique<EpochRun>(*over, epoch, job_.source.first_iteration(), job_.source.samples(),
                                 static_cast<std::uint32_t>(roster.workers.size()));
  for (auto* group : job_.roster().groups()) {
    for (Participant& p : *group) {
      p.state = ParticipantState::kPreparing;
      p.kept_until = 0;
    }
  }
  job_.log(absl::StrFormat("epoch %d begins at iteration %d (%s) with %d worker%s and %d server%s",
                           epoch.value(), job_.run->first_iteration, job_.source.text(),
                           roster.workers.size(), plural(roster.workers.size()),
                           roster.servers.size(), plural(roster.servers.size())),
           actions);
  for (const Participant& p : roster.workers) {
    if (!p.is_new || !job_.staffing.would_slow_all(p.node)) continue;
    job_.log(absl::StrCat(participant_text(p),
                          " computes on its CPU, the others on GPUs: all will wait for it"),
             actions, LogLine::Kind::kAlarm);
  }
  tell_what_is_lost(*over, actions);
  job_.checkpoints.abandon_beyond(job_.run->first_iteration, epoch);
  preparation_.begin(now, actions);
}

void Recovery::tell_what_is_lost(const EpochRun& over, JobActions& actions) const {
  if (!over.plan) return;
  const Iteration first = job_.run->first_iteration;
  // A worker that was cut off from here has not told of all that the others have.
  const Iteration completed = over.iterations.completed();
  const Iteration finished = std::max(completed, over.iterations.newest() - 1);
  if (finished > first) {
    job_.log(absl::StrCat(finished - first, " finished iterations are made again"), actions);
  } else if (completed < first) {
    job_.log(absl::StrFormat("metrics.jsonl has nothing of iterations %d to %d: who could tell of "
                             "them is lost, and no earlier checkpoint is there",
                             completed, first - 1),
             actions, LogLine::Kind::kAlarm);
  }
}

std::optional<Nanoseconds> Recovery::finish(Nanoseconds now) {
  if (!interruption_) return std::nullopt;
  trains_since_ = now;
  change_cost_ = begun_at_ == Nanoseconds{0} ? begun_at_ : now - begun_at_;
  return now - std::exchange(interruption_, std::nullopt)->since;
}

void Recovery::extend_deadlines(Nanoseconds duration, Nanoseconds now) {
  if (!interruption_) return;
  interruption_->since = std::min(interruption_->since + duration, now);
  interruption_->vacant_since = std::min(interruption_->vacant_since + duration, now);
}

}  // namespace poseidon
