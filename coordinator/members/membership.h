#pragma once

// Who is in the cluster: join, heartbeat, leave, lease expiry, as a pure state machine.
// Before: coordinator/cluster/cluster.h decoded a message and knows `now`. After: job_run hears who
// came and went.
//
// Invariants
//  1. A NodeId is given once in the life of the object.
//  2. Two members of one role never have the same address (a worker without one is not compared).
//  3. A member is gone after the first expire() beyond its deadline: one lease after its last sign
//     of life. A sign of life is a message, and the end of its stream (its machine said so); of
//     one that is silent, that the job trains with it (job_advanced).
//  4. Silence proves nothing while we ourselves were cut off or asleep, and that time does not
//     count:
//     a. asleep (frozen, starved): expire(), which is called many times a second, was not called
//        for two heartbeats;
//     b. cut off: all of the job's members (without a job: all members) were silent for more than
//        two heartbeats, and at least two of them have a stream. It ends with the next sign of life
//        of one of them, and after isolation_limit at the latest. Of one single member nobody can
//        tell; the lease decides.
//     Time that was longer than the lease has cost nodes their streams: then everybody gets
//     return_time to come back.

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

/// What a node said of itself, checked.
struct NodeInfo {
  NodeId id;
  NodeRole role = NodeRole::kWorker;
  std::string address;  ///< HOST:PORT for other nodes; "" for a worker without one
  std::string device;
  std::string metrics_address;
  std::string software_version;
  std::string store_identity;     ///< of a server's data directory; "" for a worker
  Epoch newest_epoch;             ///< of which there is a checkpoint in it; 0: of none
  std::uint32_t process_id = 0;   ///< for people
  std::uint64_t incarnation = 0;  ///< of the process; see Join
  std::string peer_host;          ///< where the coordinator sees it
};

/// Not another process at the same address.
bool is_same_process(const NodeInfo& one, const NodeInfo& other);

/// Server: "10.0.0.2:4711". Worker: "10.0.0.2:40123, process 1234"; without an address its host.
std::string node_place(const NodeInfo& node);
/// "worker 10.0.0.2:4711".
std::string node_text(const NodeInfo& node);

/// The address of the server among them that has this data directory now; "" when there is none.
std::string store_address(const std::vector<NodeInfo>& nodes, const std::string& identity);

struct MembershipOptions {
  Nanoseconds lease = Milliseconds(3000);     ///< silence after which a node is gone
  Nanoseconds heartbeat = Milliseconds(500);  ///< how often nodes are asked to speak
  std::size_t max_nodes = 1024;               ///< further joins are refused
  /// What a node takes to come back once the coordinator answers: a try that hangs (5 s) and the
  /// longest back-off (2 s) of common/node/control_client.cc, and some.
  Nanoseconds return_time = std::chrono::seconds(10);
  /// As long as nodes go on alone by default (--coordinator-away-s).
  Nanoseconds isolation_limit = std::chrono::hours(1);
  /// How long a node may be silent while the job's progress shows that it is at work. What it has
  /// not told of by then is lost to the metrics, and the job goes back before it.
  Nanoseconds vouched_limit = std::chrono::minutes(2);
};
/// The lease must hold at least two heartbeats, so that one lost beat kills nobody.
absl::Status validate(const MembershipOptions& options);

/// One node's end, with the reason for people.
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

  /// Members of an earlier life of the coordinator, with the ids they had, their streams yet to
  /// come back. Until the first sign of life of anybody we take ourselves for cut off. Before
  /// everything else.
  void restore(const std::vector<NodeInfo>& nodes, Nanoseconds now);

  /// Ids up to this one were given in an earlier life, to nodes that will not come back by them.
  void skip_ids(NodeId last) { next_id_ = std::max(next_id_, last.next()); }

  /// Whose silence tells that we are cut off: the nodes of the job in progress. Empty: all members.
  void set_job(const std::vector<NodeId>& nodes);

  /// Any message of the node counts as a sign of life. False: no such member.
  bool heard_from(NodeId id, Nanoseconds now);

  /// Somebody has finished an iteration that nobody had before, and all of `needed` had to take
  /// part in the one before it. Who of them is silent is cut off from us alone: it keeps its place
  /// for another lease each time, up to vouched_limit. One that died after it had sent its last
  /// gradient seems to live for two such iterations; so whose stream has ended needs three.
  void job_advanced(const std::vector<NodeId>& needed, Nanoseconds now);
  /// Silent for longer than this, while the job's progress vouches for them. In NodeId order.
  std::vector<NodeId> vouched_for(Nanoseconds silent, Nanoseconds now) const;
  /// The job has nothing left to do but to hear from these: those that have proved to be at work in
  /// their silence have until vouched_limit.
  void await(const std::vector<NodeId>& nodes);

  /// Its stream ended without a word; it may come back within its lease. False: no such member.
  bool detach(NodeId id, const std::string& reason, Nanoseconds now);
  /// It is back, on a new stream. False when no member has this id, role, address and process.
  bool attach(const NodeInfo& node, Nanoseconds now);

  /// Said goodbye, or will not come back. Nothing when it is no member (any more).
  std::optional<Departure> leave(NodeId id, const std::string& reason, Nanoseconds now);

  /// Removes and returns those whose time has run out, in NodeId order. Call many times a second.
  std::vector<Departure> expire(Nanoseconds now);

  /// Since when nobody was heard, while we take ourselves for cut off.
  const std::optional<Nanoseconds>& isolated_since() const { return isolated_since_; }
  /// A member at this node's address, or with its store, which one process has at a time (a
  /// container comes back with another address), that is not what it was: without a stream, or,
  /// where another process has the address now, silent for longer than the lease (when all machines
  /// of a cluster lose their power, no stream breaks and nobody is given up).
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
    std::uint64_t advances = 0;  ///< of the job, when it was last heard
    bool vouched = false;        ///< since then the job's progress has shown that it is at work
  };

  /// Whether the silence of this one counts for being cut off.
  bool is_witness(NodeId id) const { return job_.empty() || job_.count(id) > 0; }
  std::size_t witness_streams() const;
  void sign_of_life(Member& member, Nanoseconds now);
  /// Looks whether we are cut off by now; before every event.
  void observe(Nanoseconds now);
  void end_isolation(Nanoseconds now);
  /// Nobody's silence from now - duration to now counts.
  void forgive(Nanoseconds duration, Nanoseconds now);

  const MembershipOptions options_;
  NodeId next_id_{1};
  std::map<NodeId, Member> members_;
  std::set<NodeId> job_;
  std::uint64_t advances_ = 0;  ///< how often the job has
  std::optional<Nanoseconds> isolated_since_;
  std::optional<Nanoseconds> last_expire_;
};

}  // namespace poseidon
