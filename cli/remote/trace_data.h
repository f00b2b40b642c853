#pragma once

// A trace from the coordinator, with its events on one time axis. Pure.
//
// Called by: coordinator_client.h, cli/remote/trace_json.h and cli/doctor. Calls:
// common/probes/stage.h.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/plan/plan.h"
#include "common/probes/stage.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// A trace as received; nodes' clocks are not aligned yet.
struct TraceData {
  struct Node {
    v1::TraceNode node;
    std::vector<v1::TraceEvent> events;
  };
  v1::TraceHead head;
  std::vector<Node> nodes;
  std::vector<std::string> notes;  ///< missing nodes and the reasons

  bool has_tail = false;

  /// Adds the next part of the stream; false when it does not belong there.
  bool add(const v1::TracePart& part);
};

/// One event in the coordinator's time.
struct TimedEvent {
  Stage stage = Stage::kCount;
  Nanoseconds begin{0}, end{0};
  Iteration iteration = 0;
  std::optional<std::uint32_t> layer, chunk, peer;
  std::uint64_t bytes = 0;
  RelayEnd relay_end = RelayEnd::kNone;
};

struct TimedNode {
  bool is_server = false;
  std::uint32_t index = 0;
  std::string address;
  Nanoseconds clock_error{0};
  std::vector<TimedEvent> events;  ///< by begin

  /// "worker 0 (10.0.0.3:4711)".
  std::string name() const;
};

/// Drops events of unknown stages.
std::vector<TimedNode> timed_nodes(const TraceData& data);

/// One message between nodes, from sending until the receiver begins to use it.
struct TracedMessage {
  std::size_t from = 0, to = 0;  ///< positions in the nodes
  Nanoseconds sent{0}, arrived{0};
  Iteration iteration = 0;
  std::uint64_t bytes = 0;
  bool in_group = false;  ///< between workers of a group, mostly through shared memory
};

/// The gradients, parameters and factors whose events exist at both ends.
std::vector<TracedMessage> traced_messages(const std::vector<TimedNode>& nodes);

}  // namespace poseidon
