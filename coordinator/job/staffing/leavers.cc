#include "coordinator/job/staffing/leavers.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "coordinator/job/staffing/participant.h"

namespace poseidon {
namespace {

bool is_leaving(const std::vector<NodeInfo>& members, NodeId id) {
  return std::ranges::any_of(
      members, [id](const NodeInfo& node) { return node.id == id && node.is_leaving; });
}

}  // namespace

std::string leaving_text(const Roster& roster, const std::vector<NodeInfo>& members) {
  std::vector<std::string> leaving;
  for (const auto* group : roster.groups()) {
    for (const Participant& p : *group) {
      if (is_lost(p) || p.state == ParticipantState::kFinished) continue;
      if (is_leaving(members, p.node.id)) leaving.push_back(participant_text(p));
    }
  }
  return absl::StrJoin(leaving, ", ");
}

void vacate_leaving(const std::vector<NodeInfo>& members, Roster& roster) {
  for (auto* group : roster.groups()) {
    for (Participant& p : *group) {
      if (!is_leaving(members, p.node.id)) continue;
      p.node.is_leaving = true;  // known also when it has gone
      p.state = ParticipantState::kLost;
    }
  }
}

bool only_leaving_are_missing(const Roster& roster) {
  bool any = false;
  for (const auto* group : roster.groups()) {
    for (const Participant& p : *group) {
      if (!is_lost(p)) continue;
      if (!p.node.is_leaving) return false;
      any = true;
    }
  }
  return any;
}

std::vector<NodeId> leaving_holders(const std::vector<NodeInfo>& members,
                                    const CheckpointManifest& checkpoint) {
  std::vector<NodeId> holders;
  const auto leaves = [](const NodeInfo& node) { return node.is_leaving; };
  if (std::ranges::none_of(members, leaves) || is_reachable_without(members, checkpoint, leaves)) {
    return holders;
  }
  for (const NodeInfo& node : members) {
    if (leaves(node) &&
        std::ranges::find(checkpoint.stores, node.store_identity) != checkpoint.stores.end()) {
      holders.push_back(node.id);
    }
  }
  return holders;
}

bool is_reachable_without(const std::vector<NodeInfo>& members,
                          const CheckpointManifest& checkpoint,
                          const std::function<bool(const NodeInfo&)>& left_out) {
  std::vector<NodeInfo> others = members;
  std::erase_if(others, left_out);
  std::vector<bool> here;
  for (const std::string& store : checkpoint.stores) {
    here.push_back(!store_address(others, store).empty());
  }
  return is_reachable(checkpoint, here);
}

}  // namespace poseidon
