// JobRun's part about who may take a place, what becomes of those that cannot fill it, and of nodes
// that do not reach each other.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/address.h"
#include "coordinator/job/job_run.h"

namespace poseidon {
namespace {

/// What a worker without a GPU says that it computes on (Join.device).
constexpr char kCpuDevice[] = "cpu";

}  // namespace

/// A member without a part that could have one. `needed`: without it the job could not go on, so
/// that a short pause must do.
bool JobRun::is_idle(const NodeInfo& node, bool needed, Nanoseconds now) const {
  return !has_place(node.id) && may_try(node, needed, now);
}

bool JobRun::may_try(const NodeInfo& node, bool needed, Nanoseconds now) const {
  if (unfit_.contains(node.id)) return false;
  if (!needed && (is_doubter(node) || would_slow_all(node))) return false;
  return mishaps_.may_try(node, needed, now);
}

/// A CPU among GPUs, for which all others would wait: a worker whose GPU is gone for good comes
/// back like that. (One of a mixed job's own CPUs may be replaced by another.)
bool JobRun::would_slow_all(const NodeInfo& node) const {
  if (node.role != NodeRole::kWorker || node.device != kCpuDevice) return false;
  bool any_other = false;
  for (const Participant& worker : workers_) {
    if (worker.node.id == node.id) continue;
    if (worker.node.device == kCpuDevice) return false;
    any_other |= !worker.node.device.empty();
  }
  return any_other;
}

/// Null: there is none.
const NodeInfo* JobRun::next_idle(NodeRole role, const std::string* store, bool needed,
                                  Nanoseconds now) const {
  for (const NodeInfo& node : members_) {
    if (node.role != role || !is_idle(node, needed, now)) continue;
    if (store == nullptr || node.store_identity == *store) return &node;
  }
  return nullptr;
}

/// A worker on one of its group's machines, or on its predecessor's. Null: there is none.
const NodeInfo* JobRun::idle_beside_group(const Participant& vacant, bool needed,
                                          Nanoseconds now) const {
  if (run_ && vacant.index < run_->plan->workers()) {
    const WorkerRank leader = leader_of(*run_->plan, WorkerRank(vacant.index));
    for (const WorkerRank rank : group_of(*run_->plan, leader)) {
      if (rank.value() >= workers_.size() || is_lost(workers_[rank.value()])) continue;
      const std::string& address = workers_[rank.value()].node.address;
      if (const NodeInfo* node = idle_beside(address, needed, now)) return node;
    }
  }
  return idle_beside(vacant.node.address, needed, now);
}

/// A worker on the same machine. Null: there is none.
const NodeInfo* JobRun::idle_beside(const std::string& address, bool needed,
                                    Nanoseconds now) const {
  for (const NodeInfo& node : members_) {
    if (node.role == NodeRole::kWorker && same_machine(node.address, address) &&
        is_idle(node, needed, now)) {
      return &node;
    }
  }
  return nullptr;
}

/// Who was left out of this place and may try it again. Null: it is gone, or not yet.
const NodeInfo* JobRun::itself_again(const Participant& vacant, bool needed,
                                     Nanoseconds now) const {
  for (const NodeInfo& node : members_) {
    if (node.id == vacant.node.id) return may_try(node, needed, now) ? &node : nullptr;
  }
  return nullptr;
}

std::size_t JobRun::idle_workers(Nanoseconds now) const {
  return static_cast<std::size_t>(
      std::count_if(members_.begin(), members_.end(), [&](const NodeInfo& node) {
        return node.role == NodeRole::kWorker && is_idle(node, /*needed=*/false, now);
      }));
}

/// A node that came when the job had begun, and cannot get ready: its data are not there, its GPU
/// is too small. Or it is another one's answer to more workers than before. What trained before
/// goes on without. False: it is the job's fault.
bool JobRun::leave_out_unfit(const Participant& failed, const std::string& reason, Nanoseconds now,
                             JobActions& actions) {
  if (!is_preparing(state()) || !run_ || failed.state == ParticipantState::kRunning) return false;
  const bool has_grown = trained_workers_ > 0 && workers_.size() > trained_workers_;
  if (!failed.is_new && !has_grown) return false;
  const std::string text = absl::StrCat(participant_text(failed), " cannot take part: ", reason);
  std::vector<Participant*> leaving;
  if (failed.is_new) {
    leaving.push_back(find(failed.node.id));
    unfit_.insert(failed.node.id);
    count_mishap(failed.node, now);
  } else {
    most_that_fit_ = trained_workers_;
    for (std::size_t i = trained_workers_; i < workers_.size(); ++i) {
      leaving.push_back(&workers_[i]);
    }
  }
  for (Participant* p : leaving) leave_out(*p, text, actions);
  if (!failed.is_new) workers_.resize(trained_workers_);
  recover(EpochEnd::kNodeUnfit, text, /*in_memory=*/false, now, actions);
  return true;
}

/// Why it cannot train with them; "": it can.
std::string JobRun::check_data(const Participant& worker, const DataIdentity& found,
                               JobActions& actions) {
  TrainingData::Answer answer = data_.on_found(
      {.name = participant_text(worker), .is_new = worker.is_new, .run_started = has_trained()},
      found);
  if (!answer.remark.empty()) {
    actions.emplace_back(
        LogLine{absl::StrCat("job ", description_.id, ": ", answer.remark), LogLine::Kind::kAlarm});
  }
  return std::move(answer.refusal);
}

/// Until the run has trained, no worker's data are the run's: who said so may be gone.
void JobRun::forget_untrained_data() {
  if (has_trained()) return;
  data_.forget();
  if (!source_ || !source_->data) return;
  data_.set_checkpoint(*source_->data,
                       absl::StrCat("checkpoint ", snapshot_name(source_->snapshot)));
}

/// On its machine somebody could not read a checkpoint that is still taken for good.
bool JobRun::is_doubter(const NodeInfo& node) const {
  return std::ranges::any_of(distrusted_machines_, [&](const auto& entry) {
    const auto& [snapshot, machines] = entry;
    return checkpoints_.committed().contains(snapshot) && checkpoints_.is_usable(snapshot) &&
           machines.contains(node.peer_host);
  });
}

/// A newcomer that cannot read the checkpoint: its memory or its network card may be what is bad,
/// and what is condemned is lost to the job. So the run waits for another one, or goes on without
/// it, from the same checkpoint; until somebody on another machine says so too, or it is needed and
/// says so again, or nobody is waited for any longer. Of what is in its own store a server knows
/// best. False: it is believed.
bool JobRun::leave_out_doubter(const Participant& failed, const std::string& reason,
                               Nanoseconds now, JobActions& actions) {
  const bool is_of_its_own = failed.node.role == NodeRole::kServer &&
                             std::ranges::count(source_->stores, failed.node.store_identity) > 0;
  if (!failed.is_new || is_of_its_own) return false;
  std::set<std::string>& machines = distrusted_machines_[source_->snapshot];
  const bool again = !machines.insert(failed.node.peer_host).second;
  if (machines.size() > 1) return false;
  const bool others_may_try = std::ranges::any_of(members_, [&](const NodeInfo& node) {
    return node.role == failed.node.role && !machines.contains(node.peer_host) &&
           is_idle(node, /*needed=*/true, now);
  });
  if (again && !others_may_try) return false;
  const Nanoseconds vacant_since = recovery_ ? recovery_->vacant_since : Nanoseconds{0};
  if (now - vacant_since > description_.replace_timeout + options_.recovery_timeout) return false;
  count_mishap(failed.node, now);
  const std::string text =
      absl::StrCat(participant_text(failed), " cannot read ", reason, "; others have not tried");
  leave_out(*find(failed.node.id), text, actions);
  recover(EpochEnd::kNodeUnfit, text, /*in_memory=*/false, now, actions);
  return true;
}

/// Null: nobody is there, or two are, behind different hosts.
const NodeInfo* JobRun::member_at(const std::string& address) const {
  const NodeInfo* found = nullptr;
  for (const NodeInfo& node : members_) {
    if (address.empty() || node.address != address) continue;
    if (found != nullptr) return nullptr;
    found = &node;
  }
  return found;
}

/// Also what comes too late to count as a failure, as another was first: the more say it, the
/// better is known who is cut off.
void JobRun::note_unreachable(NodeId from, Epoch epoch, const std::string& address) {
  const bool is_recent = epoch == epoch_ || (is_preparing(state()) && epoch < epoch_);
  const NodeInfo* other = member_at(address);
  if (ended() || !is_recent || !has_place(from) || other == nullptr || other->id == from) return;
  unreachable_.add(from, other->id, epoch);
}

/// Who of two that do not reach each other is the more likely to be cut off: who is so from more
/// of the others; else the newcomer; else whom it costs less to do without. `other` may be null: it
/// has no part in the job, or is not known.
const Participant& JobRun::cut_off(const Participant& failed, const Participant* other) const {
  if (other == nullptr) return failed;
  const std::size_t from_failed = unreachable_.count(failed.node.id);
  const std::size_t from_other = unreachable_.count(other->node.id);
  if (from_failed != from_other) return from_failed > from_other ? failed : *other;
  if (failed.is_untried != other->is_untried) return failed.is_untried ? failed : *other;
  if (failed.node.role != other->node.role) {
    return failed.node.role == NodeRole::kWorker ? failed : *other;
  }
  return failed.index > other->index ? failed : *other;
}

/// Somebody is there for its place, or the job may go on with fewer. A server of which the next
/// epoch would have to read something is none to do without: who does not reach it now would not
/// then.
bool JobRun::can_do_without(const Participant& participant, Nanoseconds now) const {
  const bool is_worker = participant.node.role == NodeRole::kWorker;
  const std::vector<const CheckpointManifest*> usable = usable_checkpoints();
  if (!is_worker && !usable.empty()) {
    std::vector<bool> here;
    for (const std::string& store : usable.back()->stores) {
      here.push_back(store != participant.node.store_identity &&
                     !store_address(members_, store).empty());
    }
    if (!is_reachable(*usable.back(), here)) return false;
  }
  if (next_idle(participant.node.role, nullptr, /*needed=*/false, now) != nullptr) return true;
  const auto& group = is_worker ? workers_ : servers_;
  auto left = static_cast<std::size_t>(std::ranges::count_if(group, [&](const Participant& p) {
    return !is_lost(p) && p.node.id != participant.node.id;
  }));
  if (!is_worker) return left > 0;
  while (left >= fewest_workers() && !allows_workers(left)) --left;
  return left >= fewest_workers();
}

/// Two nodes do not reach each other, once more, and perhaps only one of them is to blame: the job
/// tries to do without it. The first time it may have been anything, and a new epoch tries again.
bool JobRun::leave_out_unreachable(const Participant& failed, const std::string& address,
                                   const std::string& reason, Nanoseconds now,
                                   JobActions& actions) {
  const NodeInfo* const peer = member_at(address);
  const Participant* const other = peer == nullptr ? nullptr : find(peer->id);
  // A store that is here without a part in the job: there is nobody to do without.
  const bool is_apart = peer != nullptr && other == nullptr;
  if (is_apart && unreachable_.count(peer->id) > unreachable_.count(failed.node.id)) return false;
  const Participant* blamed = &cut_off(failed, other);
  const bool again =
      (blamed->is_untried && mishaps_.knows(blamed->node)) ||
      (peer != nullptr && unreachable_.known_before(failed.node.id, peer->id, epoch_));
  if (blamed->is_untried) count_mishap(blamed->node, now);
  if (!again) return false;
  if (!blamed->is_untried) {
    // Not the other one where more is known: it is in order, and the next after it would be, too.
    const bool may_be_other = other != nullptr && unreachable_.count(other->node.id) ==
                                                      unreachable_.count(failed.node.id);
    if (may_be_other && !can_do_without(*blamed, now)) blamed = blamed == &failed ? other : &failed;
    if (!can_do_without(*blamed, now)) return false;
    // With the first time, which was not counted: others shall have its place for a while.
    for (int times = 0; times < 2; ++times) count_mishap(blamed->node, now);
  }
  const std::string text =
      blamed == &failed
          ? absl::StrCat(participant_text(failed), " failed again: ", reason)
          : absl::StrCat(participant_text(*blamed),
                         " was not reached again: ", participant_text(failed), " failed: ", reason);
  const bool in_memory = state() == JobState::kRunning && blamed->node.role == NodeRole::kWorker;
  Participant& leaving = *find(blamed->node.id);
  leaving.is_cut_off = true;
  leave_out(leaving, text, actions);
  recover(EpochEnd::kNodeUnfit, text, in_memory, now, actions);
  return true;
}

/// Whoever has not got ready in all that time holds up a run that has trained without it, or was
/// fine before: it goes on without. False: the run has not trained, and they end it.
bool JobRun::leave_out_silent(Nanoseconds now, JobActions& actions) {
  if (!is_preparing(state()) || state() == JobState::kCalibrating || !has_trained() ||
      states_.in_state(now) <= options_.preparing_timeout) {
    return false;
  }
  auto& group = state() == JobState::kPreparingServers ? servers_ : workers_;
  const std::string text = absl::StrFormat("not ready after %.0f s (--prepare-timeout-s): %s",
                                           seconds(states_.in_state(now)),
                                           names_in(group, ParticipantState::kPreparing));
  std::vector<Participant*> silent;
  for (Participant& p : group) {
    if (p.state == ParticipantState::kPreparing) silent.push_back(&p);
  }
  if (silent.empty()) return false;
  // They may have to wait for each other: a group for its leader's relay, ...
  if (&group == &workers_) {
    std::erase_if(silent, [this](const Participant* p) {
      const WorkerRank leader = leader_of(*run_->plan, WorkerRank(p->index));
      return leader != WorkerRank(p->index) &&
             workers_[leader.value()].state == ParticipantState::kPreparing;
    });
  }
  // ... at the beginning all others for worker 0's parameters.
  const auto is_new = [](const Participant* p) { return p->is_new; };
  if (std::ranges::any_of(silent, is_new)) {
    std::erase_if(silent, std::not_fn(is_new));
  } else if (!source_ && silent.front()->index == 0) {
    silent.resize(1);
  }
  for (Participant* p : silent) {
    if (p->is_new) count_mishap(p->node, now);
    unfit_.insert(p->node.id);
    leave_out(*p, text, actions);
  }
  recover(EpochEnd::kNodeUnfit, text, /*in_memory=*/false, now, actions);
  return true;
}

void JobRun::leave_out(Participant& participant, const std::string& why, JobActions& actions) {
  actions.emplace_back(SendStop{.node = participant.node.id, .succeeded = false, .reason = why});
  participant.state = ParticipantState::kLost;
}

/// It has cost the others what they waited for it.
void JobRun::count_mishap(const NodeInfo& newcomer, Nanoseconds now) {
  mishaps_.count(newcomer, is_preparing(state()) ? states_.in_state(now) : Nanoseconds{0}, now);
}

/// Iterations that were new: whoever is here has shown what it can do.
void JobRun::forget_mishaps() {
  unreachable_.clear();
  for (auto* group : {&workers_, &servers_}) {
    for (Participant& p : *group) {
      if (!std::exchange(p.is_untried, false)) continue;
      mishaps_.forget(p.node);
      for (auto& [snapshot, machines] : distrusted_machines_) machines.erase(p.node.peer_host);
    }
  }
}

}  // namespace poseidon
