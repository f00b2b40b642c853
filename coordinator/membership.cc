#include "coordinator/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace poseidon {
namespace {

double seconds(Nanoseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

const char* role_name(NodeRole role) { return role == NodeRole::kWorker ? "worker" : "server"; }

std::string node_place(const NodeInfo& node) {
  // A server's port is chosen by people and tells it apart; a worker's mostly is not.
  const bool named = node.role == NodeRole::kServer || node.process_id == 0;
  if (!node.address.empty() && named) return node.address;
  if (!node.address.empty()) return absl::StrCat(node.address, ", process ", node.process_id);
  return absl::StrCat(node.peer_host, ", process ", node.process_id);
}

std::string node_text(const NodeInfo& node) {
  return absl::StrCat(role_name(node.role), " ", node_place(node));
}

absl::Status validate(const MembershipOptions& options) {
  if (options.heartbeat < Milliseconds(10)) {
    return absl::InvalidArgumentError("the heartbeat must be at least 10 ms");
  }
  if (options.lease < 2 * options.heartbeat) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the lease (%.3f s) must be at least two heartbeats (of %.3f s)",
                        seconds(options.lease), seconds(options.heartbeat)));
  }
  return absl::OkStatus();
}

absl::StatusOr<NodeId> Membership::join(NodeInfo node, Nanoseconds now) {
  if (members_.size() >= options_.max_nodes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the cluster is full: ", members_.size(), " nodes (of at most ", options_.max_nodes, ")"));
  }
  if (!node.address.empty()) {
    for (const auto& [id, member] : members_) {
      if (member.node.role != node.role || member.node.address != node.address) continue;
      return absl::UnavailableError(absl::StrFormat(
          "a %s at %s is already in the cluster (node %d, process %d, heard %.1f s ago): give each "
          "its own --listen address",
          role_name(node.role), node.address, id.value(), member.node.process_id,
          seconds(now - member.last_heard)));
    }
  }
  const NodeId id = next_id_;
  next_id_ = next_id_.next();
  node.id = id;
  members_.emplace(id, Member{.node = std::move(node), .last_heard = now});
  return id;
}

bool Membership::heard_from(NodeId id, Nanoseconds now) {
  const auto it = members_.find(id);
  if (it == members_.end()) return false;
  it->second.last_heard = std::max(it->second.last_heard, now);
  return true;
}

std::optional<Departure> Membership::leave(NodeId id, const std::string& reason, Nanoseconds now) {
  const auto it = members_.find(id);
  if (it == members_.end()) return std::nullopt;
  Departure departure{
      .node = std::move(it->second.node), .reason = reason, .silent = now - it->second.last_heard};
  members_.erase(it);
  return departure;
}

std::vector<Departure> Membership::expire(Nanoseconds now) {
  std::vector<Departure> departures;
  for (auto it = members_.begin(); it != members_.end();) {
    const Nanoseconds silent = now - it->second.last_heard;
    if (silent <= options_.lease) {
      ++it;
      continue;
    }
    departures.push_back({.node = std::move(it->second.node),
                          .reason = absl::StrFormat("was silent for %.1f s (lease %.1f s)",
                                                    seconds(silent), seconds(options_.lease)),
                          .silent = silent});
    it = members_.erase(it);
  }
  return departures;
}

std::vector<NodeInfo> Membership::nodes() const {
  std::vector<NodeInfo> nodes;
  nodes.reserve(members_.size());
  for (const auto& [id, member] : members_) nodes.push_back(member.node);
  return nodes;
}

const NodeInfo* Membership::find(NodeId id) const {
  const auto it = members_.find(id);
  return it == members_.end() ? nullptr : &it->second.node;
}

std::size_t Membership::count(NodeRole role) const {
  return static_cast<std::size_t>(
      std::count_if(members_.begin(), members_.end(),
                    [role](const auto& entry) { return entry.second.node.role == role; }));
}

}  // namespace poseidon
