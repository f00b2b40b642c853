// Cluster's part about coming back: nodes whose stream broke (cluster.cc has the rest of them).

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster.h"
#include "spdlog/spdlog.h"

namespace poseidon {

void Cluster::let_come_back(NodeId node, const std::string& reason) {
  if (!membership_.detach(node, reason, clock_->now())) return;
  spdlog::info("{} (node {}) {}; it has {} ms to come back", node_text(*membership_.find(node)),
               node.value(), reason,
               std::chrono::duration_cast<Milliseconds>(options_.membership.lease).count());
}

std::vector<NodeId> Cluster::nodes_of_job() const {
  std::vector<NodeId> nodes;
  if (!job_ || job_->ended()) return nodes;
  for (const auto* group : {&job_->workers(), &job_->servers()}) {
    for (const Participant& p : *group) {
      if (p.state != ParticipantState::kLost) nodes.push_back(p.node.id);
    }
  }
  return nodes;
}

v1::CoordinatorMessage Cluster::joined_message(NodeId id, const std::string& note) const {
  const auto milliseconds = [](Nanoseconds time) {
    return static_cast<std::uint32_t>(std::chrono::duration_cast<Milliseconds>(time).count());
  };
  v1::CoordinatorMessage message;
  v1::Joined& joined = *message.mutable_joined();
  joined.set_node_id(id.value());
  joined.set_heartbeat_ms(milliseconds(options_.membership.heartbeat));
  joined.set_lease_ms(milliseconds(options_.membership.lease));
  joined.set_note(note);
  return message;
}

bool Cluster::take_back(NodeLink* link, NodeInfo node, const v1::Resume& resume) {
  node.id = NodeId(resume.node_id());
  const Nanoseconds now = clock_->now();
  if (!job_ || !job_->has_part(node.id) || !membership_.attach(node, now)) return false;
  const bool countable = resume.oldest_iteration() <= static_cast<std::uint64_t>(INT64_MAX);
  JobActions actions;
  const std::optional<LackingReports> lacks = job_->on_back(
      {.node = node.id,
       .epoch = Epoch(resume.epoch()),
       .index = resume.index(),
       .oldest = countable ? static_cast<Iteration>(resume.oldest_iteration()) : Iteration{-1}},
      actions);
  if (!lacks) return false;
  if (NodeLink* old = link_of(node.id)) {
    old->close(absl::AbortedError("this node has opened another stream"));
    attached_.erase(old);
  }
  attached_[link].node = node.id;
  v1::CoordinatorMessage message = joined_message(node.id, "it keeps its part in the job");
  v1::Resumed& resumed = *message.mutable_joined()->mutable_resumed();
  resumed.set_next_iteration(static_cast<std::uint64_t>(lacks->iteration));
  resumed.set_next_test(static_cast<std::uint64_t>(lacks->test));
  link->send(message);
  spdlog::info("{} (node {}) is back, and has its part in job {}", node_text(node), node.id.value(),
               job_->description().id);
  apply(actions);
  return true;
}

/// Who joins as a new node ends what was here of it, and of the process that had its address.
void Cluster::make_room(const NodeInfo& node, const v1::Join& join) {
  const auto depart_now = [this](NodeId id, const std::string& why) {
    if (const auto gone = membership_.leave(id, why, clock_->now())) {
      depart(*gone, absl::AbortedError(absl::StrCat("this node ", why)));
    }
  };
  if (join.has_resume()) {
    const NodeId id(join.resume().node_id());
    const NodeInfo* old = membership_.find(id);
    if (old != nullptr && old->role == node.role && old->address == node.address &&
        old->process_id == node.process_id) {
      depart_now(id, "came back without its part in the job");
    }
  }
  if (const auto id = membership_.detached_at(node.role, node.address)) {
    depart_now(*id, "broke its stream, and another process has its address");
  }
}

}  // namespace poseidon
