// The recovery's part of JobRun: what happens when a node is lost, and checkpoints (job_run.cc has
// the job's life).

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "coordinator/job_run.h"
#include "coordinator/job_run_text.h"

namespace poseidon {
namespace {

/// A change so near to the end would gain nothing.
constexpr Iteration kLeastIterationsLeft = 4;

bool is_lost(const Participant& p) { return p.state == ParticipantState::kLost; }

const char* plural(std::size_t n) { return n == 1 ? "" : "s"; }

}  // namespace

// ---- a start from a checkpoint ----

/// Where a run is restored from is the operator's choice: other checkpoints that are there, of this
/// course or another, never take its place.
void JobRun::begin_at_source() {
  if (!description_.source) return;
  const auto& committed = checkpoints_.committed();
  const auto found = committed.find(*description_.source);
  POSEIDON_CHECK(found != committed.end(), "the source is one of the checkpoints given");
  source_ = found->second;
  first_iteration_ = source_->iteration();
  furthest_ = first_iteration_;
  begun_with_ = source_->begun_with;
  samples_ = source_->samples;
  POSEIDON_CHECK(first_iteration_ < description_.iterations, "something is left to do");
  for (const auto& [snapshot, manifest] : committed) {
    if (snapshot != source_->snapshot) abandoned_.insert(snapshot);
  }
}

/// As many workers as before: by the same schemes the run goes on to the same bytes, whatever the
/// number of servers.
bool JobRun::repeats_source_plan() const {
  return !plan_ && source_ && source_->workers == workers_.size();
}

/// "the server with data directory 01ab... (STORE_IDENTITY), which has a part of checkpoint 3-100";
/// "" when all are here.
std::string JobRun::missing_stores_text() const {
  if (!source_) return "";
  return missing_stores(
      *source_, [this](const std::string& identity) { return !store_address(identity).empty(); });
}

// ---- checkpoints ----

/// Training is done but for the checkpoint of its last iteration.
bool JobRun::last_checkpoint_is_open() const {
  const Iteration last = description_.iterations;
  const bool is_periodic =
      description_.checkpoint_every > 0 && last % description_.checkpoint_every == 0;
  return (is_periodic || checkpoints_.asked_for() == last) && !checkpoints_.is_settled(last);
}

CheckpointManifest JobRun::manifest_frame() const {
  CheckpointManifest frame;
  frame.job_id = description_.id;
  frame.job_name = description_.name;
  frame.job_json = description_.job_json;
  frame.run_directory = description_.run_directory;
  frame.workers = static_cast<std::uint32_t>(workers_.size());
  frame.begun_with = begun_with_;
  frame.samples = samples_;
  for (const Participant& server : servers_) frame.stores.push_back(server.node.store_identity);
  frame.pieces = checkpoint_pieces(*plan_, description_.chunk_bytes, description_.replicas);
  frame.plan = pin_of(*plan_);
  return frame;
}

/// What the commit asks for; its questions go to every node of the epoch that is there.
void JobRun::carry_out(CheckpointActions checkpoint_actions, JobActions& actions) {
  std::vector<WorkerRank> lost;
  for (const Participant& worker : workers_) {
    if (is_lost(worker)) lost.emplace_back(worker.index);
  }
  for (CheckpointAction& action : checkpoint_actions) {
    if (const auto* ask = std::get_if<AskForCheckpoint>(&action)) {
      for (const auto* group : {&workers_, &servers_}) {
        for (const Participant& p : *group) {
          if (is_lost(p)) continue;
          actions.emplace_back(SendSave{.node = p.node.id,
                                        .iteration = ask->iteration,
                                        .held = state_ == JobState::kSaving,
                                        .lost = lost});
        }
      }
    } else if (auto* forget = std::get_if<ForgetParts>(&action)) {
      actions.emplace_back(std::move(*forget));
    } else if (auto* write = std::get_if<WriteManifest>(&action)) {
      actions.emplace_back(std::move(*write));
    } else if (auto* remove = std::get_if<RemoveManifest>(&action)) {
      actions.emplace_back(std::move(*remove));
    } else if (auto* log = std::get_if<CheckpointLog>(&action)) {
      actions.emplace_back(std::move(*log));
    }
  }
}

JobActions JobRun::on_checkpoint_report(NodeId from, Epoch epoch, CheckpointCommit::Report report,
                                        std::int64_t now_unix_s, Nanoseconds now) {
  JobActions actions;
  const Participant* participant = expect_participant(from, epoch, "CheckpointReport", actions);
  if (participant == nullptr) return actions;
  if (report.iteration <= first_iteration_ || report.iteration > description_.iterations) {
    refuse(actions, Refusal::kWrongIteration,
           absl::StrFormat("CheckpointReport of iteration %d from %s", report.iteration,
                           participant_text(*participant)));
    return actions;
  }
  report.server.reset();
  if (participant->node.role == NodeRole::kServer) {
    report.server = ServerIndex(participant->index);
  }
  report.who = participant_text(*participant);
  carry_out(checkpoints_.on_report(report, now_unix_s, now), actions);
  after_checkpoint_event(now, actions);
  return actions;
}

JobActions JobRun::on_manifest_written(SnapshotId snapshot, const absl::Status& status,
                                       Nanoseconds now) {
  JobActions actions;
  carry_out(checkpoints_.on_manifest_written(snapshot, status), actions);
  if (snapshot_epoch(snapshot) != epoch_) abandon_later_checkpoints();
  after_checkpoint_event(now, actions);
  return actions;
}

JobActions JobRun::on_manifest_removed(SnapshotId snapshot, const absl::Status& status) {
  JobActions actions;
  carry_out(checkpoints_.on_manifest_removed(snapshot, status), actions);
  return actions;
}

absl::StatusOr<JobActions> JobRun::save_checkpoint(Nanoseconds now) {
  if (state_ != JobState::kRunning) {
    return absl::FailedPreconditionError(
        absl::StrFormat("job %s is %s: there is nothing to save just now", description_.id,
                        job_state_name(state_)));
  }
  if (checkpoints_.asked_for()) return JobActions();
  if (iterations_->completed() == description_.iterations) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", description_.id, " has done all its ", description_.iterations,
        " iterations; its model is ", description_.run_directory, "/model.safetensors"));
  }
  absl::StatusOr<CheckpointActions> asked = checkpoints_.ask(iterations_->completed(), now);
  if (!asked.ok()) return asked.status();
  JobActions actions;
  carry_out(*std::move(asked), actions);
  return actions;
}

void JobRun::after_checkpoint_event(Nanoseconds now, JobActions& actions) {
  finish_if_complete(now, actions);
  if (state_ == JobState::kRunning && change_ && !is_trained()) change_now(now, actions);
  if (state_ != JobState::kSaving) return;
  const SnapshotId wanted = snapshot_id(epoch_, saving_);
  if (checkpoints_.committed().contains(wanted)) {
    replace(now, actions);
  } else if (const auto& last = checkpoints_.last();
             last && last->snapshot == wanted && !last->committed) {
    fall_back(absl::StrCat("what is in memory could not be saved: ", last->reason), now, actions);
  }
}

// ---- a node is lost ----

std::size_t JobRun::fewest_workers() const {
  return static_cast<std::size_t>(std::max<std::int64_t>(description_.min_workers, 1));
}

/// `in_memory`: what is lost is a worker, so that everything else may still be there.
void JobRun::recover(const std::string& reason, bool in_memory, Nanoseconds now,
                     JobActions& actions) {
  recovering_from_ = reason;
  actions.emplace_back(LogLine{absl::StrCat("job ", description_.id, ": ", reason)});
  if (!recovering_since_) {
    recovering_since_ = now;
    ++recoveries_;
  }
  switch (state_) {
    case JobState::kReplacing:
      try_replacing(now, actions);
      return;
    case JobState::kHalting:
    case JobState::kSaving:
      break;
    default:
      if (++idle_recoveries_ > options_.max_idle_recoveries) {
        end(false,
            absl::StrFormat("%s; the job recovered %d times in a row without finishing an "
                            "iteration that was new",
                            reason, options_.max_idle_recoveries),
            now, actions);
        return;
      }
  }
  if (in_memory && state_ == JobState::kRunning) {
    enter(JobState::kHalting, now);
    message_ = absl::StrCat("recovers: ", reason, "; halts the others");
    held_.clear();
    for (const auto* group : {&workers_, &servers_}) {
      for (const Participant& p : *group) {
        if (!is_lost(p)) actions.emplace_back(SendHalt{p.node.id});
      }
    }
    halted_all(now, actions);
  } else if (in_memory && state_ == JobState::kHalting) {
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
  if (state_ != JobState::kHalting || participant->state == ParticipantState::kHalted) {
    refuse(actions, Refusal::kWrongState,
           absl::StrFormat("Halted from %s; job %s is %s", participant_text(*participant),
                           description_.id, job_state_name(state_)));
    return actions;
  }
  participant->state = ParticipantState::kHalted;
  held_[from] = held;
  halted_all(now, actions);
  return actions;
}

/// Once all that are there have halted: which version they can give together, and where to take it
/// from.
void JobRun::halted_all(Nanoseconds now, JobActions& actions) {
  Iteration oldest = first_iteration_;
  Iteration newest = std::numeric_limits<Iteration>::max();
  for (const auto* group : {&workers_, &servers_}) {
    for (const Participant& p : *group) {
      if (is_lost(p)) continue;
      if (p.state != ParticipantState::kHalted) return;
      oldest = std::max(oldest, held_[p.node.id].oldest);
      newest = std::min(newest, held_[p.node.id].newest);
    }
  }
  // Not beyond what everybody, also who is lost, has told of: each line of the metrics is written.
  Iteration version = std::min(newest, iterations_->completed());
  if (const auto test = tests_->oldest_pending()) version = std::min(version, *test);
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
  if (description_.has_statistics && is_lost(workers_[0])) {
    fall_back("the running statistics of the model are lost with worker 0", now, actions);
    return;
  }
  enter(JobState::kSaving, now);
  saving_ = version;
  message_ = absl::StrCat("recovers: ", recovering_from_, "; saves iteration ", version);
  carry_out(checkpoints_.ask_held(version, now), actions);
  after_checkpoint_event(now, actions);
}

void JobRun::fall_back(const std::string& why, Nanoseconds now, JobActions& actions) {
  actions.emplace_back(LogLine{absl::StrFormat(
      "job %s: %s; goes back to %s", description_.id, why,
      checkpoints_.newest() != nullptr
          ? absl::StrCat("checkpoint ", snapshot_name(checkpoints_.newest()->snapshot))
          : "the beginning: there is no checkpoint")});
  replace(now, actions);
}

/// The epoch is over; the next one begins when there are nodes and a source.
void JobRun::replace(Nanoseconds now, JobActions& actions) {
  held_.clear();
  enter(JobState::kReplacing, now);
  end_epoch(false, absl::StrCat("the job recovers: ", recovering_from_), actions);
  try_replacing(now, actions);
}

/// Of earlier epochs, beyond the iteration at which this one began.
void JobRun::abandon_later_checkpoints() {
  for (const auto& [snapshot, manifest] : checkpoints_.committed()) {
    if (snapshot_epoch(snapshot) != epoch_ && manifest.iteration() > first_iteration_) {
      abandoned_.insert(snapshot);
    }
  }
}

// ---- who takes whose place ----

/// The address of the server that has this data directory now; "" when there is none.
std::string JobRun::store_address(const std::string& identity) const {
  for (const NodeInfo& node : members_) {
    if (node.role == NodeRole::kServer && node.store_identity == identity) return node.address;
  }
  return "";
}

/// By ServerIndex; "" where a store is not here. Nothing when a piece is in none that is.
std::optional<std::vector<std::string>> JobRun::addresses_of_stores(
    const CheckpointManifest& manifest) const {
  std::vector<std::string> addresses;
  std::vector<bool> here;
  for (const std::string& store : manifest.stores) {
    addresses.push_back(store_address(store));
    here.push_back(!addresses.back().empty());
  }
  if (!is_reachable(manifest, here)) return std::nullopt;
  return addresses;
}

/// The newest checkpoint that can be read, or the beginning where there never was one. `in_time`:
/// only the newest will do, its servers may still come.
bool JobRun::choose_source(bool in_time, std::string& missing) {
  source_.reset();
  source_addresses_.clear();
  first_iteration_ = 0;
  samples_ = 0;
  const auto& committed = checkpoints_.committed();
  bool none = unreadable_.empty();
  for (auto it = committed.rbegin(); it != committed.rend(); ++it) {
    if (unreadable_.contains(it->first) || abandoned_.contains(it->first)) continue;
    none = false;
    std::optional<std::vector<std::string>> addresses = addresses_of_stores(it->second);
    if (!addresses) {
      if (missing.empty() || !in_time) {
        absl::StrAppend(&missing, missing.empty() ? "" : ", ",
                        "the servers whose data directories ", "have checkpoint ",
                        snapshot_name(it->first));
      }
      if (in_time) return false;
      continue;
    }
    source_ = it->second;
    first_iteration_ = source_->iteration();
    samples_ = source_->samples;
    source_addresses_ = *std::move(addresses);
    return true;
  }
  if (none) return true;
  if (missing.empty()) missing = "a checkpoint that can be read";
  return false;
}

/// Puts members without a part into the places of those that are lost. A lost server's place waits
/// for whoever has its data. When there was time enough, the places that are left go.
bool JobRun::fill_vacancies(bool in_time, std::string& missing) {
  const auto next_idle = [this](NodeRole role, const std::string* store) -> const NodeInfo* {
    for (const NodeInfo& node : members_) {
      if (node.role != role) continue;
      if (store != nullptr && node.store_identity != *store) continue;
      const Participant* p = find(node.id);
      if (p == nullptr) return &node;
    }
    return nullptr;
  };
  const auto fill = [](Participant& p, const NodeInfo& node) {
    p.node = node;
    p.state = ParticipantState::kWaiting;
  };
  std::vector<std::string> vacant;
  for (auto* group : {&workers_, &servers_}) {
    for (Participant& p : *group) {
      if (!is_lost(p)) continue;
      const bool is_server = p.node.role == NodeRole::kServer;
      const std::string* store = is_server && in_time ? &p.node.store_identity : nullptr;
      if (const NodeInfo* node = next_idle(p.node.role, store)) {
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
  if (left(workers_) < fewest_workers() || left(servers_) == 0) return false;
  for (auto* group : {&workers_, &servers_}) {
    std::erase_if(*group, is_lost);
    while (group == &workers_ && group->size() > fewest_workers() &&
           !allows_workers(group->size())) {
      group->pop_back();  // idle until there are enough for the next allowed number
    }
    for (std::uint32_t i = 0; i < group->size(); ++i) (*group)[i].index = i;
  }
  missing.clear();
  return true;
}

void JobRun::try_replacing(Nanoseconds now, JobActions& actions) {
  if (epoch_asked_) return;
  const Nanoseconds waited = now - *recovering_since_;
  const bool in_time = waited < description_.replace_timeout;
  std::string missing;
  const bool all_there = fill_vacancies(in_time, missing);
  if (all_there && choose_source(in_time, missing)) {
    add_workers();
    epoch_asked_ = true;
    message_ = absl::StrCat("recovers: ", recovering_from_, "; begins a new epoch");
    actions.emplace_back(TakeEpoch{});
    return;
  }
  const auto& committed = checkpoints_.committed();
  const bool all_unreadable =
      !unreadable_.empty() &&
      std::all_of(committed.begin(), committed.end(), [this](const auto& c) {
        return unreadable_.contains(c.first) || abandoned_.contains(c.first);
      });
  if (all_unreadable) {
    end(false,
        absl::StrCat(recovering_from_,
                     "; no other checkpoint is left, and from the beginning it "
                     "should not go on by itself: submit the job again for that"),
        now, actions);
    return;
  }
  message_ = absl::StrFormat("recovers: %s; waits for %s", recovering_from_, missing);
  if (waited <= description_.replace_timeout + options_.recovery_timeout) return;
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
  epoch_asked_ = false;
  if (state_ != JobState::kReplacing) return actions;  // ended meanwhile
  if (!epoch.ok()) {
    end(false,
        absl::StrCat("the job cannot recover (", recovering_from_,
                     "): no new epoch: ", epoch.status().message()),
        now, actions);
    return actions;
  }
  const bool all_there = std::none_of(workers_.begin(), workers_.end(), is_lost) &&
                         std::none_of(servers_.begin(), servers_.end(), is_lost) &&
                         (!source_ || addresses_of_stores(*source_));
  if (!all_there) {  // somebody left while the epoch was written down; the number is not used
    try_replacing(now, actions);
    return actions;
  }
  epoch_ = Epoch(*epoch);
  for (auto* group : {&workers_, &servers_}) {
    for (Participant& p : *group) p.state = ParticipantState::kPreparing;
  }
  actions.emplace_back(LogLine{absl::StrFormat(
      "job %s: epoch %d begins at iteration %d (%s) with %d worker%s and %d server%s",
      description_.id, epoch_.value(), first_iteration_,
      source_ ? absl::StrCat("checkpoint ", snapshot_name(source_->snapshot)) : "the beginning",
      workers_.size(), plural(workers_.size()), servers_.size(), plural(servers_.size()))});
  if (iterations_ && iterations_->completed() > first_iteration_) {
    actions.emplace_back(
        LogLine{absl::StrFormat("job %s: %d finished iterations are made again", description_.id,
                                iterations_->completed() - first_iteration_)});
  }
  abandon_later_checkpoints();
  change_.reset();
  change_after_ = now + options_.change_pause;
  loss_.reset();
  model_stored_ = false;
  begin_planning(now, actions);
  return actions;
}

// ---- more workers, a better plan ----

std::size_t JobRun::most_workers() const {
  return description_.workers > 0 ? description_.workers
                                  : static_cast<std::size_t>(description_.max_workers);
}

bool JobRun::allows_workers(std::size_t count) const {
  if (!description_.with_workers || begun_with_ == 0) return true;
  return description_.with_workers(begun_with_, static_cast<std::uint32_t>(count)).ok();
}

/// Those without a part, as many as the job takes.
void JobRun::add_workers() {
  if (!iterations_ || !description_.with_workers) return;  // the first epoch has chosen its own
  std::vector<const NodeInfo*> idle;
  for (const NodeInfo& node : members_) {
    if (node.role == NodeRole::kWorker && find(node.id) == nullptr) idle.push_back(&node);
  }
  std::size_t count = std::min(workers_.size() + idle.size(), most_workers());
  while (count > workers_.size() && !allows_workers(count)) --count;
  for (std::size_t i = 0; workers_.size() < count; ++i) {
    workers_.push_back({.node = *idle[i],
                        .index = static_cast<std::uint32_t>(workers_.size()),
                        .state = ParticipantState::kWaiting});
  }
}

/// New members while the job trains: they are taken in, from a checkpoint, after a while.
void JobRun::consider_growth(Nanoseconds now, JobActions& actions) {
  if (change_ || !description_.with_workers || workers_.size() >= most_workers()) return;
  std::size_t idle = 0;
  for (const NodeInfo& node : members_) {
    if (node.role == NodeRole::kWorker && find(node.id) == nullptr) ++idle;
  }
  const std::size_t most = std::min(workers_.size() + idle, most_workers());
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
  if (state_ != JobState::kRunning) return;
  if (!change_) consider_growth(now, actions);
  if (!change_ || now < change_after_) return;
  if (!change_->at) {
    const bool near_the_end =
        iterations_->completed() + kLeastIterationsLeft >= description_.iterations;
    absl::StatusOr<CheckpointActions> asked = checkpoints_.ask(iterations_->completed(), now);
    if (near_the_end || !asked.ok()) {  // an operator's save is under way: later
      change_after_ = now + options_.growth_delay;
      return;
    }
    change_->at = checkpoints_.asked_for();
    carry_out(*std::move(asked), actions);
  } else if (checkpoints_.asked_for()) {
    change_->at = checkpoints_.asked_for();  // it was too late, and is asked for again
  } else {
    change_now(now, actions);
    if (!change_) return;
    change_.reset();
    change_after_ = now + options_.change_pause;
  }
}

/// If its checkpoint is there.
void JobRun::change_now(Nanoseconds now, JobActions& actions) {
  if (!change_->at || !checkpoints_.committed().contains(snapshot_id(epoch_, *change_->at))) return;
  recovering_from_ = change_->why;
  recovering_since_ = now;
  next_plan_ = std::move(change_->plan);
  change_.reset();
  replace(now, actions);
}

// ---- time ----

void JobRun::tick_recovery(Nanoseconds now, JobActions& actions) {
  const Nanoseconds in_state = now - entered_;
  if (is_trained()) {
    finish_if_complete(now, actions);
    if (ended() || now - last_progress_ <= options_.last_checkpoint_timeout) return;
    actions.emplace_back(LogLine{absl::StrFormat(
        "job %s: training is done, but its last checkpoint is not whole after %.0f s",
        description_.id, seconds(now - last_progress_))});
    end(true, "", now, actions);
    return;
  }
  if (state_ == JobState::kHalting && in_state > options_.halting_timeout) {
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
  } else if (state_ == JobState::kSaving && in_state > options_.saving_timeout) {
    fall_back(absl::StrFormat("what is in memory was not saved within %.0f s", seconds(in_state)),
              now, actions);
  } else if (state_ == JobState::kReplacing) {
    try_replacing(now, actions);
  }
}

}  // namespace poseidon
