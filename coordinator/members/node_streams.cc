#include "coordinator/members/node_streams.h"

namespace poseidon {

void NodeStreams::open(const std::shared_ptr<NodeLink>& link, Nanoseconds now) {
  streams_[link.get()] = {.link = link, .node = std::nullopt, .opened = now};
}

void NodeStreams::close(NodeLink* link, const absl::Status& status) {
  link->close(status);
  streams_.erase(link);
}

void NodeStreams::close_node(NodeId node, const absl::Status& status) {
  if (NodeLink* link = find(node)) close(link, status);
}

void NodeStreams::close_all(const absl::Status& status) {
  for (auto& [link, stream] : streams_) link->close(status);
  streams_.clear();
}

std::vector<NodeLink*> NodeStreams::unjoined_since_before(Nanoseconds time) const {
  std::vector<NodeLink*> links;
  for (const auto& [link, stream] : streams_) {
    if (!stream.node && stream.opened < time) links.push_back(link);
  }
  return links;
}

bool NodeStreams::send(NodeId node, const v1::CoordinatorMessage& message) {
  NodeLink* link = find(node);
  if (link == nullptr) return false;
  if (link->send(message)) return true;
  undeliverable_.push_back(node);
  return false;
}

NodeLink* NodeStreams::find(NodeId node) const {
  for (const auto& [link, stream] : streams_) {
    if (stream.node == node) return link;
  }
  return nullptr;
}

}  // namespace poseidon
