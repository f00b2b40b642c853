#pragma once

// One trace of the running job, from the operator's request to the last event: the requests to each
// node, and when to give up on a node. Pure.
//
// Called by: coordinator/cluster/traces.h, with the answers of nodes and the state of the
// operator's stream. Calls: coordinator/watch/clock_estimate.h. The caller sends what the actions
// say.
//
// Invariants
//  1. The coordinator holds at most one piece of events: it requests the next one when the operator
//     has received the previous one. So 64 nodes need no more memory than one.
//  2. A trace ends: the iterations, each answer and the whole collection have deadlines.
//  3. The tail names the nodes that did not answer.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "coordinator/members/membership.h"
#include "coordinator/watch/clock_estimate.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

struct TraceMember {
  NodeId id;
  NodeRole role = NodeRole::kWorker;
  std::uint32_t index = 0;  ///< WorkerRank or ServerIndex
  std::string address;
};

struct TraceActions {
  std::vector<std::pair<NodeId, v1::CoordinatorMessage>> sends;
  std::vector<v1::TracePart> parts;  ///< for the operator, in order
  bool done = false;                 ///< the parts are the last ones
};

/// The job's progress.
struct TraceProgress {
  Iteration completed = 0;  ///< by all workers
  bool trains = true;
  std::string state;  ///< for people; used when it does not train
};

class TraceRun {
 public:
  /// How long a node may take for one piece of its events ...
  static constexpr Nanoseconds kAnswerTimeout = std::chrono::seconds(3);
  /// ... and all nodes and the operator together.
  static constexpr Nanoseconds kCollectTimeout = std::chrono::seconds(60);
  /// Clock samples per node: at the start, and at most in total while the iterations run.
  static constexpr std::uint32_t kFirstEchoes = 8, kMostEchoes = 64;

  /// `number`: unique. `head`: the iterations to trace. `deadline`: for these iterations.
  TraceRun(std::uint64_t number, v1::TraceHead head, std::vector<TraceMember> members,
           Nanoseconds deadline);

  TraceActions begin(Nanoseconds now);
  TraceActions on_echo(NodeId node, const v1::ClockEcho& echo, Nanoseconds now);
  TraceActions on_piece(NodeId node, const v1::TracePiece& piece, Nanoseconds now);
  /// The node left, or its stream broke.
  TraceActions on_gone(NodeId node, const std::string& reason, Nanoseconds now);
  /// The operator has received all parts so far.
  TraceActions on_written(Nanoseconds now);
  /// Call several times a second.
  TraceActions tick(const TraceProgress& progress, Nanoseconds now);
  /// The operator has left: the actions tell the nodes to free their memory.
  TraceActions cancel();

 private:
  struct Node {
    TraceMember member;
    ClockEstimate clock;
    std::uint64_t asked = 0;  ///< the number of the pending request; 0: none
    std::uint64_t asks = 0;
    Nanoseconds asked_at{0};
    std::string gone;  ///< why it cannot answer
    bool fetched = false;
  };

  Node* find(NodeId id);
  void ask_clock(Node& node, Nanoseconds now, TraceActions& actions) const;
  void collect(Nanoseconds now, TraceActions& actions);
  void fetch(Nanoseconds now, TraceActions& actions);
  void next_node(Nanoseconds now, TraceActions& actions);
  void finish(TraceActions& actions);
  bool collecting() const { return at_ < nodes_.size(); }

  const std::uint64_t number_;
  v1::TraceHead head_;
  const Nanoseconds deadline_;
  std::vector<Node> nodes_;
  std::vector<std::string> notes_;
  // Collecting.
  bool recording_ = true, done_ = false;
  std::size_t at_ = 0;  ///< the node whose events are being fetched
  std::uint64_t from_ = 0;
  bool waits_for_operator_ = false;
  Nanoseconds asked_at_{0}, collecting_since_{0};
};

}  // namespace poseidon
