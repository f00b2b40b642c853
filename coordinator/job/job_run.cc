#include "coordinator/job/job_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/address.h"
#include "common/base/check.h"
#include "coordinator/planning/local_groups.h"

namespace poseidon {
namespace {

/// Where a job begins `anew`, each copy of its checkpoints needs a server; later it goes on with
/// fewer.
std::size_t least_servers(const JobDescription& job, bool anew) {
  return std::max<std::size_t>({job.servers, anew ? static_cast<std::size_t>(job.replicas) : 1, 1});
}

}  // namespace

JobRun::JobRun(JobRunOptions options, JobDescription description, Nanoseconds now)
    : options_(options),
      description_(std::move(description)),
      epoch_(description_.epoch),
      states_(now),
      checkpoints_(options.checkpoints, description_.keep_checkpoints, description_.iterations,
                   description_.committed),
      mishaps_(options.mishaps),
      elastic_{.job_json = description_.job_json, .batch_size = description_.batch_size},
      idle_recoveries_(options.idle_recoveries) {
  POSEIDON_CHECK(description_.iterations > 0 && description_.batch_size > 0, "a checked job");
  POSEIDON_CHECK(
      description_.make_plan && description_.learning_rate && description_.why_no_calibration,
      "all functions are given");
  begin_at_source();
  message_ = missing_text();
}

// ---- choosing nodes ----

std::string JobRun::missing_text() const {
  const std::size_t want_workers = description_.workers > 0
                                       ? description_.workers
                                       : static_cast<std::size_t>(description_.min_workers);
  const std::size_t want_servers = least_servers(description_, begun_with_ == 0);
  const std::string missing_stores = missing_stores_text();
  if (!missing_stores.empty() && present_workers_ >= want_workers &&
      present_servers_ >= want_servers) {
    return absl::StrCat("waits for ", missing_stores);
  }
  return absl::StrFormat(
      "waits for nodes: %d of %d workers and %d of %d servers are here; start the others "
      "(poseidon-worker, poseidon-server) with --coordinator pointing here",
      std::min(present_workers_, want_workers), want_workers,
      std::min(present_servers_, want_servers), want_servers);
}

JobActions JobRun::on_members(const std::vector<NodeInfo>& members, Nanoseconds now) {
  JobActions actions;
  members_ = members;
  if (state() == JobState::kReplacing) try_replacing(now, actions);
  if (state() == JobState::kRunning) consider_growth(now, actions);
  if (state() != JobState::kWaiting) return actions;
  const auto count = [&members](NodeRole role) {
    return static_cast<std::size_t>(std::count_if(
        members.begin(), members.end(), [role](const NodeInfo& n) { return n.role == role; }));
  };
  present_workers_ = count(NodeRole::kWorker);
  present_servers_ = count(NodeRole::kServer);
  message_ = missing_text();
  if (source_) {
    std::optional<std::vector<std::string>> addresses = addresses_of_stores(*source_);
    if (!addresses) return actions;
    source_addresses_ = *std::move(addresses);
  }
  // Its checkpoints would have the numbers of others.
  const bool epoch_is_used = std::ranges::any_of(
      members, [this](const NodeInfo& node) { return node.newest_epoch >= epoch_; });
  if (epoch_is_used) {
    const std::string& why = next_epoch_.why();
    if (!why.empty()) message_ = absl::StrCat("waits for an epoch: ", why);
    if (!next_epoch_.is_due(now)) return actions;
    next_epoch_.ask(now);
    actions.emplace_back(TakeEpoch{});
  } else if (choose_nodes(members)) {
    begin_planning(now, actions);
  }
  return actions;
}

/// The job has not begun, and a server has checkpoints of its epoch, another coordinator's.
JobActions JobRun::on_epoch_instead(const absl::StatusOr<std::uint64_t>& epoch, Nanoseconds now) {
  JobActions actions;
  if (!epoch.ok()) {  // the disk may have room again soon; waiting has its deadline
    next_epoch_.refused(std::string(epoch.status().message()), now);
    message_ = absl::StrCat("waits for an epoch: ", next_epoch_.why());
    return actions;
  }
  next_epoch_.granted();
  actions.emplace_back(LogLine{absl::StrFormat(
      "job %s: it is in epoch %d instead of %d, of which a server has another coordinator's "
      "checkpoints",
      description_.id, *epoch, epoch_.value())});
  epoch_ = Epoch(*epoch);
  for (JobAction& action : on_members(std::vector(members_), now)) {
    actions.push_back(std::move(action));
  }
  return actions;
}

bool JobRun::choose_nodes(const std::vector<NodeInfo>& members) {
  const JobDescription& d = description_;
  const std::size_t min_workers =
      d.workers > 0 ? d.workers : static_cast<std::size_t>(d.min_workers);
  const std::size_t max_workers =
      d.workers > 0 ? d.workers : static_cast<std::size_t>(d.max_workers);
  const std::size_t min_servers = least_servers(d, begun_with_ == 0);
  const std::size_t max_servers = d.servers > 0 ? d.servers : SIZE_MAX;
  if (present_workers_ < min_workers || present_servers_ < min_servers) return false;

  std::vector<Participant> workers;
  for (const NodeInfo& node : members) {
    if (node.role == NodeRole::kWorker) {
      workers.push_back({.node = node});
    } else if (servers_.size() < max_servers) {
      servers_.push_back({.node = node, .index = static_cast<std::uint32_t>(servers_.size())});
    }
  }
  const auto put_in = [](const std::vector<std::size_t>& order, std::vector<Participant>& group) {
    std::vector<Participant> ordered;
    for (const std::size_t next : order) ordered.push_back(group[next]);
    group = std::move(ordered);
  };
  const std::size_t count = std::min(workers.size(), max_workers);
  if (source_ && source_->workers == count && !source_->plan.leaders.empty()) {
    put_in(rank_order_for(source_->plan.leaders, machines(workers)), workers);
  } else {
    put_in(rank_order(machines(workers)), workers);
  }
  workers.resize(count);
  for (std::uint32_t rank = 0; rank < workers.size(); ++rank) workers[rank].index = rank;
  workers_ = std::move(workers);
  return true;
}

std::vector<std::string> JobRun::addresses(const std::vector<Participant>& participants) const {
  std::vector<std::string> addresses;
  for (const Participant& p : participants) addresses.push_back(p.node.address);
  return addresses;
}

/// What tells machines apart, in the form of addresses. Where addresses are translated two may
/// announce the same one, and are seen under others.
std::vector<std::string> JobRun::machines(const std::vector<Participant>& participants) const {
  std::vector<std::string> machines;
  for (const Participant& p : participants) {
    const bool is_alone = p.node.address.empty();
    machines.push_back(
        is_alone ? "" : absl::StrCat(host_of(p.node.address), "@", p.node.peer_host, ":0"));
  }
  return machines;
}

// ---- who speaks ----

Participant* JobRun::find(NodeId id) {
  for (auto* group : {&workers_, &servers_}) {
    for (Participant& p : *group) {
      if (p.node.id == id) return &p;
    }
  }
  return nullptr;
}

bool JobRun::has_place(NodeId id) const {
  const auto is_it = [id](const Participant& p) { return p.node.id == id; };
  return std::ranges::any_of(workers_, is_it) || std::ranges::any_of(servers_, is_it);
}

Participant* JobRun::expect_participant(NodeId from, Epoch epoch, const char* what,
                                        JobActions& actions) {
  Participant* participant = find(from);
  if (participant == nullptr) {
    refuse(actions, Refusal::kNotInJob,
           absl::StrFormat("%s from node %d, which has no part in job %s", what, from.value(),
                           description_.id));
    return nullptr;
  }
  if (epoch != epoch_) {
    refuse(actions, Refusal::kStaleEpoch,
           absl::StrFormat("%s of epoch %d from %s; the job has epoch %d", what, epoch.value(),
                           participant_text(*participant), epoch_.value()));
    return nullptr;
  }
  if (ended() || participant->state == ParticipantState::kLost ||
      participant->state == ParticipantState::kWaiting) {
    // It hears a moment later that its epoch or the job is over, and says meanwhile what it has to.
    refuse(actions, Refusal::kLate,
           absl::StrFormat("%s from %s; job %s is %s", what, participant_text(*participant),
                           description_.id, job_state_name(state())));
    return nullptr;
  }
  return participant;
}

Participant* JobRun::expect_worker(NodeId from, Epoch epoch, const char* what,
                                   JobActions& actions) {
  Participant* participant = expect_participant(from, epoch, what, actions);
  if (participant == nullptr) return nullptr;
  if (participant->node.role != NodeRole::kWorker ||
      participant->state != ParticipantState::kRunning) {
    refuse(actions, Refusal::kWrongState,
           absl::StrFormat("%s from %s, which is %s", what, participant_text(*participant),
                           participant_state_name(participant->state)));
    return nullptr;
  }
  return participant;
}

// ---- preparing ----

JobActions JobRun::on_ready(NodeId from, Epoch epoch, Nanoseconds now,
                            const std::optional<DataIdentity>& found) {
  JobActions actions;
  Participant* participant = expect_participant(from, epoch, "Ready", actions);
  if (participant == nullptr) return actions;
  const NodeRole expected =
      state() == JobState::kPreparingServers ? NodeRole::kServer : NodeRole::kWorker;
  if (participant->state != ParticipantState::kPreparing) {
    refuse(actions, Refusal::kDuplicate,
           absl::StrCat("Ready again from ", participant_text(*participant)));
    return actions;
  }
  const bool preparing =
      state() == JobState::kPreparingServers || state() == JobState::kPreparingWorkers;
  if (!preparing || participant->node.role != expected) {
    refuse(actions, Refusal::kWrongState,
           absl::StrCat("Ready before its turn from ", participant_text(*participant)));
    return actions;
  }
  if (found && expected == NodeRole::kWorker) {
    if (const std::string foreign = check_data(*participant, *found, actions); !foreign.empty()) {
      if (participant->is_new) {
        fail_for(*participant, foreign, now, actions);
      } else {  // no newcomer's fault
        end(false, absl::StrCat(participant_text(*participant), " failed: ", foreign), now,
            actions);
      }
      return actions;
    }
  }
  participant->state = ParticipantState::kReady;
  participant->is_new = false;
  if (state() == JobState::kPreparingServers && all_in(servers_, ParticipantState::kReady)) {
    states_.transition(JobEvent::kServersReady, now);
    message_ = absl::StrCat("prepares ", workers_.size(), " workers");
    for (const Participant& worker : workers_) {
      actions.emplace_back(SendAssignment{.node = worker.node.id, .index = worker.index});
    }
  } else if (state() == JobState::kPreparingWorkers && all_in(workers_, ParticipantState::kReady)) {
    states_.transition(JobEvent::kWorkersReady, now);
    trained_workers_ = workers_.size();
    checkpoints_.set_data(data());
    lines_are_lost_ = false;
    message_.clear();
    pace_.begin_epoch(now, first_iteration_);
    for (Participant& server : servers_) server.state = ParticipantState::kRunning;
    for (Participant& worker : workers_) {
      worker.state = ParticipantState::kRunning;
      actions.emplace_back(SendStart{worker.node.id});
    }
    std::string where = "starts";
    if (recovery_) {
      where = absl::StrFormat("goes on at iteration %d, %.1f s after it stopped", first_iteration_,
                              seconds(now - recovery_->since));
    } else if (source_) {
      where = absl::StrFormat("goes on at iteration %d (checkpoint %s)", first_iteration_,
                              snapshot_name(source_->snapshot));
    }
    actions.emplace_back(LogLine{
        absl::StrFormat(
            "job %s: every node is ready, training %s: %d iterations, %d workers of batch %d",
            description_.id, where, description_.iterations, workers_.size(), elastic_.batch_size),
        recovery_ ? LogLine::Kind::kRecovery : LogLine::Kind::kJob});
    recovery_.reset();
  }
  return actions;
}

// ---- time ----

std::string JobRun::deadline_reason(Nanoseconds now) const {
  const Nanoseconds in_state = states_.in_state(now);
  const Nanoseconds quiet = states_.quiet(now);
  switch (state()) {
    case JobState::kWaiting:
      if (in_state <= options_.waiting_timeout) return "";
      return absl::StrFormat("after %.0f s it still %s", seconds(in_state), missing_text());
    case JobState::kCalibrating:  // its steps have deadlines of their own, and none fails the job
    case JobState::kHalting:      // those of recovering fail no job either: see tick_recovery
    case JobState::kSaving:
    case JobState::kReplacing:
      break;
    case JobState::kPreparingServers:
      if (in_state <= options_.preparing_timeout) return "";
      return absl::StrFormat("not ready after %.0f s (--prepare-timeout-s): %s", seconds(in_state),
                             names_in(servers_, ParticipantState::kPreparing));
    case JobState::kPreparingWorkers:
      if (in_state <= options_.preparing_timeout) return "";
      return absl::StrFormat("not ready after %.0f s (--prepare-timeout-s): %s", seconds(in_state),
                             names_in(workers_, ParticipantState::kPreparing));
    case JobState::kRunning: {
      const std::string busy = names_in(workers_, ParticipantState::kRunning);
      if (busy.empty() && !model_stored_ && quiet > options_.upload_timeout) {
        return absl::StrFormat("all workers have finished, but %s sent no model for %.0f s",
                               participant_text(workers_[0]), seconds(quiet));
      }
      if (busy.empty() || quiet <= options_.progress_timeout) return "";
      return absl::StrFormat(
          "no report for %.0f s after %d iterations; the slowest is %s; not finished: %s",
          seconds(quiet), run_->iterations.completed(),
          participant_text(workers_[run_->iterations.slowest().value()]), busy);
    }
    case JobState::kDone:
    case JobState::kFailed:
      break;
  }
  return "";
}

JobActions JobRun::tick(Nanoseconds now) {
  JobActions actions;
  if (state() == JobState::kCalibrating) {
    calibration_->tick(now);
    go_on_calibrating(now, actions);
    return actions;
  }
  carry_out(checkpoints_.tick(now), actions);
  tick_recovery(now, actions);
  tick_change(now, actions);
  if (leave_out_silent(now, actions)) return actions;
  if (state() == JobState::kWaiting && !next_epoch_.why().empty()) {
    for (JobAction& action : on_members(std::vector(members_), now)) {
      actions.push_back(std::move(action));
    }
  }
  settle_stop(now, actions);
  if (ended()) return actions;
  const std::string reason = deadline_reason(now);
  if (!reason.empty()) end(false, reason, now, actions);
  return actions;
}

void JobRun::extend_deadlines(Nanoseconds duration, Nanoseconds now) {
  states_.extend_deadlines(duration, now);
  next_epoch_.extend_deadlines(duration, now);
  if (recovery_) recovery_->extend_deadlines(duration, now);
  if (stopping_) stopping_->until += duration;
  if (calibration_) calibration_->extend_deadlines(duration);
  checkpoints_.extend_deadlines(duration, now);
}

JobCounts JobRun::counts() const {
  JobCounts counts = counts_;
  counts.checkpoints_committed = checkpoints_.commits();
  counts.checkpoints_failed = checkpoints_.failures();
  return counts;
}

JobProgress JobRun::progress(Nanoseconds now) const {
  const Nanoseconds until = ended_at_.value_or(now);
  JobProgress progress;
  progress.message = message_;
  if (const auto steps = test_under_way(); steps && message_.empty()) {
    progress.message = absl::StrCat("tests the network as of iteration ", *steps);
  }
  progress.completed = run_ ? run_->iterations.completed() : first_iteration_;
  progress.loss = loss_;
  progress.test = test_;
  progress.images_per_s = pace_.images_per_s(until);
  progress.training_seconds = pace_.seconds_until(until);
  progress.iterated_seconds = pace_.iterated_seconds();
  progress.training_from = pace_.first();
  return progress;
}

}  // namespace poseidon
