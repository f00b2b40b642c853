#include "coordinator/job/staffing/suspects.h"

#include <algorithm>

namespace poseidon {

bool Suspects::may_try(const NodeInfo& node, bool needed, Nanoseconds now) const {
  if (unfit_.contains(node.id)) return false;
  if (!needed && is_doubter(node)) return false;
  return mishaps_.may_try(node, needed, now);
}

/// On its machine somebody could not read a checkpoint that is still taken for good.
bool Suspects::is_doubter(const NodeInfo& node) const {
  return std::ranges::any_of(distrusted_machines_, [&](const auto& entry) {
    const auto& [snapshot, machines] = entry;
    return checkpoints_.committed().contains(snapshot) && checkpoints_.is_usable(snapshot) &&
           machines.contains(node.peer_host);
  });
}

void Suspects::on_proved(const NodeInfo& node) {
  mishaps_.forget(node);
  for (auto& [snapshot, machines] : distrusted_machines_) machines.erase(node.peer_host);
}

const std::set<std::string>& Suspects::add_doubt(SnapshotId snapshot, const std::string& machine,
                                                 bool& again) {
  std::set<std::string>& machines = distrusted_machines_[snapshot];
  again = !machines.insert(machine).second;
  return machines;
}

const Participant& Suspects::cut_off(const Participant& failed, const Participant* other) const {
  if (other == nullptr) return failed;
  const std::size_t from_failed = cut_off_from(failed.node.id);
  const std::size_t from_other = cut_off_from(other->node.id);
  if (from_failed != from_other) return from_failed > from_other ? failed : *other;
  if (failed.is_untried != other->is_untried) return failed.is_untried ? failed : *other;
  if (failed.node.role != other->node.role) {
    return failed.node.role == NodeRole::kWorker ? failed : *other;
  }
  return failed.index > other->index ? failed : *other;
}

}  // namespace poseidon
