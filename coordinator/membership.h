#pragma once

// Who is in the cluster: join, heartbeat, leave, lease expiry, as a pure state machine.
// Before: the service decoded a message and knows `now`. After: job_run hears who came and went.
//
// Invariants
//  1. A NodeId is given once in the life of the object.
//  2. Two members of one role never have the same address (a worker without one is not compared).
//  3. A member whose last sign of life is older than the lease is gone after the next expire().

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/ids.h"

namespace poseidon {

/// Unique in the life of a coordinator; grows with every join.
using NodeId = StrongId<struct NodeIdTag, std::uint64_t>;

enum class NodeRole { kWorker, kServer };
const char* role_name(NodeRole role);  ///< "worker", "server"

/// What a node said of itself, checked.
struct NodeInfo {
  NodeId id;
  NodeRole role = NodeRole::kWorker;
  std::string address;  ///< HOST:PORT for other nodes; "" for a worker without one
  std::string device;
  std::string metrics_address;
  std::string software_version;
  std::string store_identity;  ///< of a server's data directory; "" for a worker
  std::uint32_t process_id = 0;
  std::string peer_host;  ///< where the coordinator sees it
};

/// Server: "10.0.0.2:4711". Worker: "10.0.0.2:40123, process 1234"; without an address its host.
std::string node_place(const NodeInfo& node);
/// "worker 10.0.0.2:4711".
std::string node_text(const NodeInfo& node);

struct MembershipOptions {
  Nanoseconds lease = Milliseconds(3000);     ///< silence after which a node is gone
  Nanoseconds heartbeat = Milliseconds(500);  ///< how often nodes are asked to speak
  std::size_t max_nodes = 1024;               ///< further joins are refused
};
/// The lease must hold at least two heartbeats, so that one lost beat kills nobody.
absl::Status validate(const MembershipOptions& options);

/// One node's end, with the reason for people.
struct Departure {
  NodeInfo node;
  std::string reason;     ///< "was silent for 3.1 s (lease 3.0 s)"
  Nanoseconds silent{0};  ///< since its last sign of life
};

/// One thread only (the service holds its mutex).
class Membership {
 public:
  explicit Membership(MembershipOptions options) : options_(options) {}

  /// The id of the new member. RESOURCE_EXHAUSTED when the cluster is full; UNAVAILABLE when a live
  /// member of that role has the same address (worth another try: its lease may be running out).
  absl::StatusOr<NodeId> join(NodeInfo node, Nanoseconds now);

  /// Any message of the node counts as a sign of life. False: no such member.
  bool heard_from(NodeId id, Nanoseconds now);

  /// Said goodbye, or its stream ended. Nothing when it is no member (any more).
  std::optional<Departure> leave(NodeId id, const std::string& reason, Nanoseconds now);

  /// Removes and returns those whose lease has run out, in NodeId order.
  std::vector<Departure> expire(Nanoseconds now);

  /// In NodeId order, that is, in order of joining.
  std::vector<NodeInfo> nodes() const;
  const NodeInfo* find(NodeId id) const;
  std::size_t count(NodeRole role) const;
  const MembershipOptions& options() const { return options_; }

 private:
  struct Member {
    NodeInfo node;
    Nanoseconds last_heard{0};
  };

  const MembershipOptions options_;
  NodeId next_id_{1};
  std::map<NodeId, Member> members_;
};

}  // namespace poseidon
