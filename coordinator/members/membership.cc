#include "coordinator/members/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace poseidon {
namespace {

/// A stream that ends this long after its last message may have been ended by our own system
/// because the peer did not answer (common/security/connection_door.cc: after 20 s). That is no
/// sign of life.
constexpr Nanoseconds kOwnTimeout = std::chrono::seconds(15);

/// A node that has died cannot account for this many new iterations: its last gradient lets the
/// others finish one iteration and compute forward and backward of the next.
constexpr std::uint64_t kProof = 3;

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

std::string store_address(const std::vector<NodeInfo>& nodes, const std::string& identity) {
  for (const NodeInfo& node : nodes) {
    if (node.role == NodeRole::kServer && node.store_identity == identity) return node.address;
  }
  return "";
}

absl::Status validate(const MembershipOptions& options) {
  if (options.heartbeat < Milliseconds(10)) {
    return absl::InvalidArgumentError("the heartbeat (--heartbeat-ms) must be at least 10 ms");
  }
  if (options.lease < 2 * options.heartbeat) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the lease (--lease-ms, %.3f s) must be at least two heartbeats "
                        "(--heartbeat-ms, %.3f s)",
                        seconds(options.lease), seconds(options.heartbeat)));
  }
  return absl::OkStatus();
}

// ---- being cut off ----

void Membership::sign_of_life(Member& member, Nanoseconds now) {
  member.last_heard = std::max(member.last_heard, now);
  member.deadline = std::max(member.deadline, now + options_.lease);
  member.advances = advances_;
  member.vouched = false;
}

void Membership::observe(Nanoseconds now) {
  if (isolated_since_) {
    // Beyond the limit the coordinator waits for no node.
    if (now - *isolated_since_ > options_.isolation_limit) isolated_since_.reset();
    return;
  }
  Nanoseconds newest{0};
  for (const auto& [id, member] : members_) {
    if (is_witness(id)) newest = std::max(newest, member.last_heard);
  }
  const Nanoseconds silent = now - newest;
  if (witness_streams() < 2 || silent <= 2 * options_.heartbeat ||
      silent > options_.isolation_limit)
    return;
  isolated_since_ = newest + 2 * options_.heartbeat;
}

std::size_t Membership::witness_streams() const {
  return static_cast<std::size_t>(std::count_if(
      members_.begin(), members_.end(),
      [this](const auto& entry) { return is_witness(entry.first) && entry.second.attached; }));
}

void Membership::end_isolation(Nanoseconds now) {
  if (!isolated_since_) return;
  const Nanoseconds since = *isolated_since_;
  isolated_since_.reset();
  extend_deadlines(now - since, now);
}

void Membership::extend_deadlines(Nanoseconds duration, Nanoseconds now) {
  for (auto& [id, member] : members_) {
    member.vouched = false;  // that it was silent says nothing
    const Nanoseconds resumed = std::min(member.deadline + duration, now + options_.lease);
    member.deadline = std::max(member.deadline, resumed);
    if (duration > options_.lease) {
      member.deadline = std::max(member.deadline, now + options_.return_time);
    }
  }
}

// ---- coming and going ----

bool is_same_process(const NodeInfo& one, const NodeInfo& other) {
  return one.role == other.role && one.address == other.address &&
         one.process_id == other.process_id && one.incarnation == other.incarnation;
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
  observe(now);
  // Newcomers say nothing about the members' silence, unless no member has a stream any more: then
  // these may be what has become of them.
  if (witness_streams() == 0) end_isolation(now);
  const NodeId id = next_id_;
  next_id_ = next_id_.next();
  node.id = id;
  Member member{.node = std::move(node),
                .last_heard = now,
                .deadline = now + options_.lease,
                .attached = true,
                .detached_why = "",
                .advances = advances_,
                .vouched = false};
  members_.emplace(id, std::move(member));
  return id;
}

void Membership::restore(const std::vector<NodeInfo>& nodes, Nanoseconds now) {
  for (const NodeInfo& node : nodes) {
    skip_ids(node.id);
    Member member{.node = node,
                  .last_heard = now,
                  .deadline = now + options_.return_time,
                  .attached = false,
                  .detached_why = "was there before the coordinator was started again",
                  .advances = advances_,
                  .vouched = false};
    members_.emplace(node.id, std::move(member));
  }
  if (!nodes.empty()) isolated_since_ = now;
}

void Membership::set_job(const std::vector<NodeId>& nodes) {
  job_ = std::set<NodeId>(nodes.begin(), nodes.end());
}

bool Membership::heard_from(NodeId id, Nanoseconds now) {
  const auto it = members_.find(id);
  if (it == members_.end()) return false;
  observe(now);
  // One that has no say in whether we are cut off cannot deny it either.
  if (is_witness(id)) end_isolation(now);
  sign_of_life(it->second, now);
  return true;
}

void Membership::job_advanced(const std::vector<NodeId>& needed, Nanoseconds now) {
  ++advances_;
  for (const NodeId id : needed) {
    const auto it = members_.find(id);
    if (it == members_.end()) continue;
    Member& member = it->second;
    const std::uint64_t since_heard = advances_ - member.advances;
    if (since_heard < (member.attached ? 1 : kProof)) continue;
    if (now - member.last_heard > options_.vouched_limit) continue;
    member.deadline = std::max(member.deadline, now + options_.lease);
    member.vouched = true;
  }
}

std::vector<NodeId> Membership::vouched_for(Nanoseconds silent, Nanoseconds now) const {
  std::vector<NodeId> nodes;
  for (const auto& [id, member] : members_) {
    if (member.vouched && now - member.last_heard > silent) nodes.push_back(id);
  }
  return nodes;
}

void Membership::await(const std::vector<NodeId>& nodes) {
  for (const NodeId id : nodes) {
    const auto it = members_.find(id);
    if (it == members_.end()) continue;
    Member& member = it->second;
    if (advances_ - member.advances < kProof) continue;
    member.deadline = std::max(member.deadline, member.last_heard + options_.vouched_limit);
  }
}

bool Membership::detach(NodeId id, const std::string& reason, Nanoseconds now) {
  const auto it = members_.find(id);
  if (it == members_.end()) return false;
  observe(now);
  Member& member = it->second;
  if (now - member.last_heard < kOwnTimeout) heard_from(id, now);
  member.attached = false;
  member.detached_why = reason;
  return true;
}

bool Membership::attach(const NodeInfo& node, Nanoseconds now) {
  const auto it = members_.find(node.id);
  if (it == members_.end()) return false;
  if (!is_same_process(it->second.node, node)) return false;
  heard_from(node.id, now);
  it->second.attached = true;
  it->second.node.machine = node.machine;  // no record of ours has this and the next two
  it->second.node.job = node.job;
  it->second.node.rank = node.rank;
  it->second.deadline = now + options_.lease;  // the time to come back was for this
  return true;
}

bool Membership::set_leaving(NodeId id, bool is_leaving) {
  const auto it = members_.find(id);
  if (it == members_.end()) return false;
  it->second.node.is_leaving = is_leaving;
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
  if (last_expire_ && now - *last_expire_ > 2 * options_.heartbeat) {
    extend_deadlines(now - *last_expire_, now);
  }
  last_expire_ = now;
  observe(now);
  std::vector<Departure> departures;
  if (isolated_since_) return departures;
  for (auto it = members_.begin(); it != members_.end();) {
    Member& member = it->second;
    if (now <= member.deadline) {
      ++it;
      continue;
    }
    const Nanoseconds silent = now - member.last_heard;
    std::string reason = member.attached ? absl::StrFormat("was silent for %.1f s (lease %.1f s)",
                                                           seconds(silent), seconds(options_.lease))
                                         : absl::StrFormat("%s and did not come back for %.1f s",
                                                           member.detached_why, seconds(silent));
    if (member.vouched && silent > 2 * options_.lease) {
      absl::StrAppend(&reason,
                      ", though the job has trained with it in that time: does its machine reach "
                      "the coordinator?");
    }
    departures.push_back(
        {.node = std::move(member.node), .reason = std::move(reason), .silent = silent});
    it = members_.erase(it);
  }
  return departures;
}

std::optional<NodeId> Membership::gone_from(const NodeInfo& node, Nanoseconds now) const {
  for (const auto& [id, member] : members_) {
    if (member.node.role != node.role) continue;
    const bool same_address = !node.address.empty() && member.node.address == node.address;
    const bool same_store =
        !node.store_identity.empty() && member.node.store_identity == node.store_identity;
    if (!same_address && !same_store) continue;
    const bool replaced = !is_same_process(member.node, node);
    if (!member.attached || (replaced && now - member.last_heard > options_.lease)) return id;
  }
  return std::nullopt;
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
