#include "coordinator/job/exclusion.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planning/local_groups.h"

namespace poseidon {

void Exclusion::on_failed(const Participant& from, const std::string& reason, FailureKind kind,
                          const std::string& unreachable, Nanoseconds now, JobActions& actions) {
  const std::string failed = absl::StrCat(participant_text(from), " failed: ", reason);
  const CheckpointManifest* const source = job_.source.manifest();
  if (kind == FailureKind::kCheckpoint && source != nullptr &&
      (job_.state() == JobState::kPreparingServers ||
       job_.state() == JobState::kPreparingWorkers)) {
    if (leave_out_doubter(from, reason, now, actions)) return;
    // Never from the beginning instead: what has been trained is worth a person's look.
    job_.checkpoints.set_unreadable(source->snapshot);
    recovery_.recover(EpochEnd::kCheckpointUnreadable,
                      absl::StrCat(participant_text(from), " cannot read ", reason),
                      /*in_memory=*/false, now, actions);
    return;
  }
  if (job_.state() == JobState::kHalting || job_.state() == JobState::kSaving) {
    // The node is asked to halt, too, and still holds its state.
    if (kind == FailureKind::kPeer && job_.state() == JobState::kHalting) return;
    if (recovery_.is_stored()) return;
    // The failure may come of the loss of the other node; the next epoch tells.
    recovery_.fall_back(failed, now, actions);
    return;
  }
  if (kind == FailureKind::kPeer) {
    if (leave_out_unreachable(from, unreachable, reason, now, actions)) return;
    recovery_.recover(EpochEnd::kPeerUnreachable, failed, /*in_memory=*/true, now, actions);
    return;
  }
  fail_for(from, reason, now, actions);
}

void Exclusion::fail_for(const Participant& participant, const std::string& reason, Nanoseconds now,
                         JobActions& actions) {
  if (leave_out_unfit(participant, reason, now, actions)) return;
  ending_.fail(absl::StrCat(participant_text(participant), " failed: ", reason), now, actions);
}

void Exclusion::leave_out(Participant& participant, const std::string& why, JobActions& actions) {
  actions.emplace_back(SendStop{.node = participant.node.id, .succeeded = false, .reason = why});
  participant.state = ParticipantState::kLost;
}

void Exclusion::count_mishap(const NodeInfo& newcomer, Nanoseconds now) {
  const Nanoseconds cost = is_preparing(job_.state()) ? job_.states.in_state(now) : Nanoseconds{0};
  job_.staffing.suspects().count_mishap(newcomer, cost, now);
}

void Exclusion::note_unreachable(NodeId from, Epoch epoch, const std::string& address) {
  const bool is_recent =
      epoch == job_.run->epoch || (is_preparing(job_.state()) && epoch < job_.run->epoch);
  const NodeInfo* other = job_.staffing.member_at(address);
  if (job_.ended() || !is_recent || !job_.roster().has_place(from)) return;
  if (other == nullptr || other->id == from) return;
  job_.staffing.suspects().add_unreachable(from, other->id, epoch);
}

/// A node that came when the job had begun, and cannot get ready: its data are not there, its GPU
/// is too small. Or it is another one's answer to more workers than before. What trained before
/// goes on without. False: it is the job's fault.
bool Exclusion::leave_out_unfit(const Participant& failed, const std::string& reason,
                                Nanoseconds now, JobActions& actions) {
  if (!is_preparing(job_.state()) || !job_.run->plan) return false;
  if (failed.state == ParticipantState::kRunning) return false;
  const std::size_t trained = job_.staffing.trained_workers();
  const bool has_grown = trained > 0 && job_.workers().size() > trained;
  if (!failed.is_new && !has_grown) return false;
  const std::string text = absl::StrCat(participant_text(failed), " cannot take part: ", reason);
  if (failed.is_new) {
    job_.staffing.suspects().set_unfit(failed.node.id);
    count_mishap(failed.node, now);
    leave_out(*job_.roster().find(failed.node.id), text, actions);
  } else {
    for (std::size_t i = trained; i < job_.workers().size(); ++i) {
      leave_out(job_.workers()[i], text, actions);
    }
    job_.staffing.shrink_to_trained();
  }
  recovery_.recover(EpochEnd::kNodeUnfit, text, /*in_memory=*/false, now, actions);
  return true;
}

/// A newcomer cannot read the checkpoint. Perhaps its own memory or network card is bad, and a
/// checkpoint that is set unreadable is lost to the job. So the run waits for another newcomer, or
/// goes on without this one, from the same checkpoint. The newcomer is believed when a node on
/// another machine says the same, when it is needed and says so again, when nobody is waited for
/// any longer, or when it is a server that speaks of its own store. False: it is believed.
bool Exclusion::leave_out_doubter(const Participant& failed, const std::string& reason,
                                  Nanoseconds now, JobActions& actions) {
  const CheckpointManifest& source = *job_.source.manifest();
  const bool is_of_its_own = failed.node.role == NodeRole::kServer &&
                             std::ranges::count(source.stores, failed.node.store_identity) > 0;
  if (!failed.is_new || is_of_its_own) return false;
  bool again = false;
  const std::set<std::string>& machines =
      job_.staffing.suspects().add_doubt(source.snapshot, failed.node.peer_host, again);
  if (machines.size() > 1) return false;
  const auto may_try = [&](const NodeInfo& node) {
    return node.role == failed.node.role && !machines.contains(node.peer_host) &&
           job_.staffing.is_idle(node, {.now = now, .needed = true});
  };
  if (again && std::ranges::none_of(job_.staffing.members(), may_try)) return false;
  if (now - recovery_.vacant_since() > recovery_.most_waited()) return false;
  count_mishap(failed.node, now);
  const std::string text =
      absl::StrCat(participant_text(failed), " cannot read ", reason, "; others have not tried");
  leave_out(*job_.roster().find(failed.node.id), text, actions);
  recovery_.recover(EpochEnd::kNodeUnfit, text, /*in_memory=*/false, now, actions);
  return true;
}

/// Two nodes do not reach each other, once more, and perhaps only one of them is to blame: the job
/// tries to do without it. The first time it may have been anything, and a new epoch tries again.
bool Exclusion::leave_out_unreachable(const Participant& failed, const std::string& address,
                                      const std::string& reason, Nanoseconds now,
                                      JobActions& actions) {
  const Suspects& suspects = job_.staffing.suspects();
  const NodeInfo* const peer = job_.staffing.member_at(address);
  const Participant* const other = peer == nullptr ? nullptr : job_.roster().find(peer->id);
  const std::size_t from_failed = suspects.cut_off_from(failed.node.id);
  // A store that is here without a part in the job: there is nobody to do without.
  const bool is_apart = peer != nullptr && other == nullptr;
  if (is_apart && suspects.cut_off_from(peer->id) > from_failed) return false;
  const Participant* blamed = &suspects.cut_off(failed, other);
  const bool again = (blamed->is_untried && suspects.has_mishaps(blamed->node)) ||
                     (peer != nullptr &&
                      suspects.was_unreachable_before(failed.node.id, peer->id, job_.run->epoch));
  if (blamed->is_untried) count_mishap(blamed->node, now);
  if (!again) return false;
  if (!blamed->is_untried) {
    // Not the other one where more is known: it is in order, and the next after it would be, too.
    const bool may_be_other =
        other != nullptr && suspects.cut_off_from(other->node.id) == from_failed;
    if (may_be_other && !can_do_without(*blamed, now)) blamed = blamed == &failed ? other : &failed;
    if (!can_do_without(*blamed, now)) return false;
    // With the first time, which was not counted: others shall have its place for a while.
    for (int times = 0; times < 2; ++times) count_mishap(blamed->node, now);
  }
  std::string text = absl::StrCat(participant_text(failed), " failed again: ", reason);
  if (blamed != &failed) {
    text = absl::StrCat(participant_text(*blamed),
                        " was not reached again: ", participant_text(failed), " failed: ", reason);
  }
  const bool in_memory =
      job_.state() == JobState::kRunning && blamed->node.role == NodeRole::kWorker;
  Participant& leaving = *job_.roster().find(blamed->node.id);
  leaving.is_cut_off = true;
  leave_out(leaving, text, actions);
  recovery_.recover(EpochEnd::kNodeUnfit, text, in_memory, now, actions);
  return true;
}

/// The next epoch would read the newest usable checkpoint.
bool Exclusion::can_do_without(const Participant& participant, Nanoseconds now) const {
  const std::vector<const CheckpointManifest*> usable = job_.usable_checkpoints();
  return job_.staffing.can_do_without(participant, usable.empty() ? nullptr : usable.back(), now);
}

/// Those of the group that are not ready and hold up the others.
std::vector<Participant*> Exclusion::silent_in(std::vector<Participant>& group) const {
  std::vector<Participant*> silent;
  for (Participant& p : group) {
    if (p.state == ParticipantState::kPreparing) silent.push_back(&p);
  }
  if (silent.empty()) return silent;
  // They may have to wait for each other: a group for its leader's relay, ...
  if (group.front().node.role == NodeRole::kWorker) {
    std::erase_if(silent, [&](const Participant* p) {
      const WorkerRank leader = leader_of(*job_.run->plan, WorkerRank(p->index));
      return leader != WorkerRank(p->index) &&
             group[leader.value()].state == ParticipantState::kPreparing;
    });
  }
  // ... at the beginning all others for worker 0's parameters.
  const auto is_new = [](const Participant* p) { return p->is_new; };
  if (std::ranges::any_of(silent, is_new)) {
    std::erase_if(silent, std::not_fn(is_new));
  } else if (job_.source.manifest() == nullptr && silent.front()->index == 0) {
    silent.resize(1);
  }
  return silent;
}

bool Exclusion::leave_out_silent(Nanoseconds now, JobActions& actions) {
  const bool are_servers = job_.state() == JobState::kPreparingServers;
  if (!are_servers && job_.state() != JobState::kPreparingWorkers) return false;
  const Nanoseconds in_state = job_.states.in_state(now);
  if (!job_.has_trained() || in_state <= job_.options.preparing_timeout) return false;
  std::vector<Participant>& group = are_servers ? job_.roster().servers : job_.workers();
  const std::string text =
      absl::StrFormat("not ready after %.0f s (--prepare-timeout-s): %s", seconds(in_state),
                      names_in(group, ParticipantState::kPreparing));
  const std::vector<Participant*> silent = silent_in(group);
  if (silent.empty()) return false;
  for (Participant* p : silent) {
    if (p->is_new) count_mishap(p->node, now);
    job_.staffing.suspects().set_unfit(p->node.id);
    leave_out(*p, text, actions);
  }
  recovery_.recover(EpochEnd::kNodeUnfit, text, /*in_memory=*/false, now, actions);
  return true;
}

}  // namespace poseidon
