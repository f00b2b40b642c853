#pragma once

// Receives a trace: the operator's stream (coordinator/trace_stream.h), or its twin in tests.
//
// Called by: coordinator/cluster. Calls: an implementation.

#include "absl/status/status.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Called with Cluster's mutex held: must neither block nor call back.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  /// Queues. Cluster::on_trace_written is called when all queued parts are sent.
  virtual void write(const v1::TracePart& part) = 0;
  /// Ends the stream after all queued parts. Idempotent.
  virtual void finish(const absl::Status& status) = 0;
};

}  // namespace poseidon
