#pragma once

// The open Attach streams, and which node speaks on which.
// Called by: coordinator/cluster/. Calls: NodeLink.
//
// Invariants
//  1. A node has at most one stream. A stream has no node before its Join was accepted.
//  2. A node whose queue is full is not dropped while something is being sent: take_undeliverable
//     names it afterwards, so that a loop over nodes stays valid.
// Used with Cluster's mutex held (coordinator/cluster/cluster_context.h). NodeLink neither blocks
// nor calls back.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "coordinator/members/membership.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// The coordinator's end of one Attach stream.
class NodeLink {
 public:
  virtual ~NodeLink() = default;
  /// Queues; false when the queue is full or the stream has ended. Never blocks.
  virtual bool send(const v1::CoordinatorMessage& message) = 0;
  /// Ends the stream with this status after all queued messages. Idempotent.
  virtual void close(const absl::Status& status) = 0;
  /// The host of the other side; "" when it cannot be told.
  virtual std::string peer_host() const = 0;
};

class NodeStreams {
 public:
  void open(const std::shared_ptr<NodeLink>& link, Nanoseconds now);
  std::size_t size() const { return streams_.size(); }
  bool contains(NodeLink* link) const { return streams_.contains(link); }
  /// Nothing before Join. The stream is open.
  std::optional<NodeId> node_of(NodeLink* link) const { return streams_.at(link).node; }
  /// The stream is open; a Join of this node was accepted on it.
  void set_node(NodeLink* link, NodeId node) { streams_.at(link).node = node; }
  /// The stream ended by itself.
  void erase(NodeLink* link) { streams_.erase(link); }
  /// Ends the stream; it is forgotten.
  void close(NodeLink* link, const absl::Status& status);
  /// Likewise of this node's stream, if it has one.
  void close_node(NodeId node, const absl::Status& status);
  void close_all(const absl::Status& status);
  /// Streams opened before `time` on which no node has joined.
  std::vector<NodeLink*> unjoined_since_before(Nanoseconds time) const;

  bool has_stream(NodeId node) const { return find(node) != nullptr; }
  /// False when the node has no stream, or does not take the message; in the second case it is
  /// undeliverable.
  bool send(NodeId node, const v1::CoordinatorMessage& message);
  /// Nodes that did not take a message since the last call.
  std::vector<NodeId> take_undeliverable() { return std::exchange(undeliverable_, {}); }

 private:
  struct Stream {
    std::shared_ptr<NodeLink> link;
    std::optional<NodeId> node;  ///< nothing before Join
    Nanoseconds opened{0};
  };
  NodeLink* find(NodeId node) const;

  std::map<NodeLink*, Stream> streams_;
  std::vector<NodeId> undeliverable_;
};

}  // namespace poseidon
