#pragma once

// The trace of the running job that an operator takes: begins it, sends what TraceRun decides, and
// passes pieces on to the operator.
// Called by: cluster*.cc. Calls: TraceRun (coordinator/watch), NodeStreams, TraceSink.
//
// Invariants
//  1. One trace at a time.
//  2. A trace ends with its epoch, and with the coordinator.
// Used with Cluster's mutex held (cluster_context.h).

#include <memory>
#include <string>

#include "coordinator/cluster/cluster_context.h"
#include "coordinator/members/node_streams.h"
#include "coordinator/watch/trace_run.h"
#include "coordinator/watch/trace_sink.h"

namespace poseidon {

class Traces {
 public:
  /// Both outlive it.
  Traces(const ClusterContext& context, NodeStreams& streams)
      : context_(context), streams_(streams) {}

  /// OK: everything else, and the end, goes to the sink. `job`: null when there is none.
  absl::Status begin(const v1::TraceRequest& request, const std::shared_ptr<TraceSink>& sink,
                     const JobRun* job);
  /// All that was written to this sink has gone.
  void on_written(const TraceSink* sink);
  void on_cancelled(const TraceSink* sink);
  /// A clock's echo or a piece of a trace.
  void on_message(NodeId from, const v1::NodeMessage& message);
  void on_gone(NodeId node, const std::string& reason);
  void tick(const JobRun* job);
  /// The coordinator stops.
  void end();

 private:
  void apply(TraceActions actions);

  const ClusterContext& context_;
  NodeStreams& streams_;
  std::unique_ptr<TraceRun> run_;  ///< while a trace is being taken ...
  Epoch epoch_;                    ///< ... of this epoch
  std::shared_ptr<TraceSink> sink_;
};

}  // namespace poseidon
