#include "coordinator/job/staffing/roster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "coordinator/planning/local_groups.h"

namespace poseidon {

Participant* Roster::find(NodeId id) {
  return const_cast<Participant*>(std::as_const(*this).find(id));
}

const Participant* Roster::find(NodeId id) const {
  for (const auto* group : groups()) {
    for (const Participant& p : *group) {
      if (p.node.id == id) return &p;
    }
  }
  return nullptr;
}

bool Roster::has_part(NodeId id) const {
  const Participant* const p = find(id);
  return p != nullptr && !is_lost(*p) && p->state != ParticipantState::kWaiting;
}

bool Roster::is_complete() const {
  return std::ranges::none_of(workers, is_lost) && std::ranges::none_of(servers, is_lost);
}

void Roster::set_all(ParticipantState state) {
  for (auto* group : groups()) {
    for (Participant& p : *group) p.state = state;
  }
}

void Roster::clear() {
  workers.clear();
  servers.clear();
}

bool Roster::group_needs(const Participant& participant, const Plan& plan) const {
  if (participant.node.role != NodeRole::kWorker) return false;
  const std::vector<WorkerRank> group = group_of(plan, WorkerRank(participant.index));
  return std::ranges::any_of(group, [&](WorkerRank rank) {
    const Participant& member = workers[rank.value()];
    // A member that is lost while the job goes on had finished its part.
    return member.index != participant.index && !is_lost(member) &&
           member.state != ParticipantState::kFinished;
  });
}

std::vector<NodeId> Roster::needed_to_advance(const Plan& plan) const {
  std::vector<NodeId> nodes;
  for (const Participant& worker : workers) nodes.push_back(worker.node.id);
  std::vector<bool> has_layers(servers.size(), false);
  for (const PlanChunk& chunk : plan.chunks) has_layers[chunk.server.value()] = true;
  for (const Participant& server : servers) {
    if (has_layers[server.index]) nodes.push_back(server.node.id);
  }
  return nodes;
}

std::vector<std::string> addresses_of(const std::vector<Participant>& participants) {
  std::vector<std::string> addresses;
  for (const Participant& p : participants) addresses.push_back(p.node.address);
  return addresses;
}

std::vector<std::string> machines_of(const std::vector<Participant>& participants) {
  std::vector<std::string> machines;
  for (const Participant& p : participants) {
    const bool is_alone = p.node.address.empty();
    machines.push_back(
        is_alone ? "" : absl::StrCat(host_of(p.node.address), "@", p.node.peer_host, ":0"));
  }
  return machines;
}

}  // namespace poseidon
