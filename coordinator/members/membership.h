#pragma once

// The members of the cluster: join, heartbeat, leave and lease expiry, as a pure state machine.
//
// Called by: coordinator/cluster/cluster.h, for each message and many times a second, with `now`;
// it tells coordinator/job/job_run.h of joins and departures. Calls: nothing.
//
// Invariants
//  1. A NodeId is given once in the life of the object.
//  2. Two members of one role never have the same address (a worker without one is not compared).
//  3. A member is gone after the first expire() beyond its deadline: one lease after its last sign
//     of life. A sign of life is a message or the end of its stream (its machine reported it). For
//     a silent node, progress of the job that needs it counts, too (job_advanced).
//  4. Silence does not count while the coordinator itself was asleep or cut off.
//     It was asleep (frozen, starved) when expire(), which is called many times a second, was not
//     called for two heartbeats.
//     It was cut off when all of the job's members (without a job: all members) were silent for
//     more than two heartbeats, and at least two of them have a stream. That ends with the next
//     sign of life of one of them, and after isolation_limit at the latest. A single member is no
//     evidence; its lease decides.
//     A period longer than the lease has cost nodes their streams: then all members get
//     return_time to rejoin.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/ids.h"

namespace poseidon {

/// Unique in the life of a coordinator; grows with every join.
using NodeId = StrongId<struct NodeIdTag, std::uint64_t>;

enum class NodeRole { kWorker, kServer };
const char* role_name(NodeRole role);  ///< "worker", "server"

/// A node's own description, checked.
struct NodeInfo {
  NodeId id;
  NodeRole role = NodeRole::kWorker;
  std::string address;  ///< HOST:PORT for other nodes; "" for a worker without one
  std::string device;
  std::string metrics_address;
  std::string software_version;
  std::string store_identity;      ///< of a server's data directory; "" for a worker
  Epoch newest_epoch;              ///< newest epoch with a checkpoint in it; 0: none
  std::uint32_t process_id = 0;    ///< for people
  std::uint64_t incarnation = 0;   ///< of the process; see Join
  std::uint64_t machine = 0;       ///< equal on one machine; 0: unknown, as after a restart of ours
  std::string peer_host;           ///< its address as the coordinator sees it
  std::string job;                 ///< a worker's: serves this job alone; "": jobs of workers
  std::optional<WorkerRank> rank;  ///< with `job`: the only rank that it may have
  bool is_leaving = false;         ///< it said goodbye, or is drained: no job takes it
};

/// Whether both are the same process, not just the same address.
bool is_same_process(const NodeInfo& one, const NodeInfo& other);

/// Server: "10.0.0.2:4711". Worker: "10.0.0.2:40123, process 1234"; without an address its host.
std::string node_place(const NodeInfo& node);
/// "worker 10.0.0.2:4711".
std::string node_text(const NodeInfo& node);

/// The address of the server that has this data directory now; "" when there is none.
std::string store_address(const std::vector<NodeInfo>& nodes, const std::string& identity);

struct MembershipOptions {
  Nanoseconds lease = Milliseconds(3000);     ///< silence after which a node is gone
  Nanoseconds heartbeat = Milliseconds(500);  ///< interval of heartbeats
  std::size_t max_nodes = 1024;               ///< further joins are refused
  /// Time that a node needs to rejoin once the coordinator answers: a hanging attempt (5 s) and the
  /// longest back-off (2 s) of common/node/control_client.cc, with some margin.
  Nanoseconds return_time = std::chrono::seconds(10);
  /// As long as nodes continue without the coordinator by default (--coordinator-away-s).
  Nanoseconds isolation_limit = std::chrono::hours(1);
  /// How long a node may be silent while the job's progress shows that it works. After that its
  /// unreported iterations are missing in the metrics, and the job rolls back to before them.
  Nanoseconds vouched_limit = std::chrono::minutes(2);
};
/// The lease must be at least two heartbeats, so that one lost heartbeat ends no lease.
absl::Status validate(const MembershipOptions& options);

/// A node's departure, with the reason for people.
struct Departure {
  NodeInfo node;
  std::string reason;     ///< "was silent for 3.1 s (lease 3.0 s)"
  Nanoseconds silent{0};  ///< since its last sign of life
};

/// One thread only (the cluster holds its mutex).
class Membership {
 public:
  explicit Membership(MembershipOptions options) : options_(options) {}

  /// The id of the new member. RESOURCE_EXHAUSTED when the cluster is full; UNAVAILABLE when a live
  /// member of that role has the same address (worth another try: its lease may be running out).
  absl::StatusOr<NodeId> join(NodeInfo node, Nanoseconds now);

  /// Restores the members of an earlier coordinator process, with their ids; their streams are
  /// expected back. Until the first sign of life of any member the coordinator counts as cut off.
  /// Call it first.
  void restore(const std::vector<NodeInfo>& nodes, Nanoseconds now);

  /// Skips ids up to this one, which an earlier process gave to nodes that will not return with
  /// them.
  void skip_ids(NodeId last) { next_id_ = std::max(next_id_, last.next()); }

  /// Sets the nodes whose silence shows that the coordinator is cut off: those of the current job.
  /// Empty: all members.
  void set_job(const std::vector<NodeId>& nodes);

  /// Any message of the node counts as a sign of life. False: no such member.
  bool heard_from(NodeId id, Nanoseconds now);

  /// A worker has finished a new iteration, and all of `needed` had to take part in the one before
  /// it. So a silent node among them is only cut off from the coordinator: it keeps its place for
  /// another lease each time, up to vouched_limit. A node that died after it had sent its last
  /// gradient seems alive for two such iterations, so a node whose stream has ended needs three.
  void job_advanced(const std::vector<NodeId>& needed, Nanoseconds now);
  /// Nodes that are silent for longer than this while the job's progress shows that they work. In
  /// NodeId order.
  std::vector<NodeId> vouched_for(Nanoseconds silent, Nanoseconds now) const;
  /// The job only waits for reports of these nodes: those whose work was shown during their silence
  /// have until vouched_limit.
  void await(const std::vector<NodeId>& nodes);

  /// Its stream ended without Leave; it may return within its lease. False: no such member.
  bool detach(NodeId id, const std::string& reason, Nanoseconds now);
  /// The node is back, on a new stream. False when no member has this id, role, address and
  /// process.
  bool attach(const NodeInfo& node, Nanoseconds now);

  /// The member wants to go, or is to go (NodeInfo::is_leaving), or that is taken back. False: no
  /// such member.
  bool set_leaving(NodeId id, bool is_leaving);

  /// The node left or will not return. nullopt when it is not a member.
  std::optional<Departure> leave(NodeId id, const std::string& reason, Nanoseconds now);

  /// Removes and returns those whose time has run out, in NodeId order. Call many times a second.
  std::vector<Departure> expire(Nanoseconds now);

  /// The time since which no member has sent messages, while the coordinator counts as cut off.
  const std::optional<Nanoseconds>& isolated_since() const { return isolated_since_; }
  /// A departed member that `node` replaces. It has the node's address or its store, which only one
  /// process has at a time (a container may return with another address). It has no stream, or
  /// another process has its address now and it has been silent for longer than the lease. (When
  /// all machines of a cluster lose power, no stream breaks and no member is removed.)
  std::optional<NodeId> gone_from(const NodeInfo& node, Nanoseconds now) const;
  /// In NodeId order, that is, in order of joining.
  std::vector<NodeInfo> nodes() const;
  const NodeInfo* find(NodeId id) const;
  std::size_t count(NodeRole role) const;
  const MembershipOptions& options() const { return options_; }

 private:
  struct Member {
    NodeInfo node;
    Nanoseconds last_heard{0};
    Nanoseconds deadline{0};
    bool attached = true;
    std::string detached_why;
    std::uint64_t advances = 0;  ///< the job's advances when its last message came
    bool vouched = false;        ///< since then the job's progress has shown that it works
  };

  /// Whether this node's silence counts as evidence of being cut off.
  bool is_witness(NodeId id) const { return job_.empty() || job_.count(id) > 0; }
  std::size_t witness_streams() const;
  void sign_of_life(Member& member, Nanoseconds now);
  /// Checks whether the coordinator is cut off; before every event.
  void observe(Nanoseconds now);
  void end_isolation(Nanoseconds now);
  /// Extends all deadlines by `duration`, during which the coordinator could not receive.
  void extend_deadlines(Nanoseconds duration, Nanoseconds now);

  const MembershipOptions options_;
  NodeId next_id_{1};
  std::map<NodeId, Member> members_;
  std::set<NodeId> job_;
  std::uint64_t advances_ = 0;  ///< how often the job has advanced
  std::optional<Nanoseconds> isolated_since_;
  std::optional<Nanoseconds> last_expire_;
};

}  // namespace poseidon
