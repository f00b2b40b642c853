#pragma once

// What is known of a job that trains, as `poseidon doctor` looks at it: out of a trace of some
// iterations (who computed, waited and sent how long) and the coordinator's status (cores, disks).
// Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/trace_data.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Seconds are per iteration, means over those that the trace has wholly.
struct DoctorFacts {
  struct Node {
    std::string name;  ///< "worker 0 (10.0.0.3:4711)"
    std::uint64_t machine = 0;
    // What its streams carry while a message of theirs is on its way, over all peers together;
    // nothing where it moved too little to tell.
    std::optional<double> send_bytes_per_s, receive_bytes_per_s;  ///< of its best stream each way
    double send_s = 0.0, receive_s = 0.0;  ///< that any message of its was on its way
    double sent_bytes = 0.0, received_bytes = 0.0;
  };
  struct Worker {
    Node node;
    /// Forward, backward and the steps of layers that go by SFB. The median of the iterations:
    /// where other programs run too, single ones take long.
    double compute_s = 0.0;
    double stall_s = 0.0;  ///< waiting for parameters
    double input_s = 0.0;  ///< waiting for samples
  };
  struct Server {
    Node node;
    double busy_s = 0.0;       ///< summing and stepping
    double shard_bytes = 0.0;  ///< parameters that it owns
    double disk_share = 0.0;   ///< of the time, writing checkpoints
    double disk_bytes_per_s = 0.0;
    double disk_waiting = 0.0;  ///< pieces of checkpoints
  };
  struct Layer {
    std::string name;
    bool fully_connected_by_ps = false;
    double bytes = 0.0;    ///< of its parameters on the wire
    double stall_s = 0.0;  ///< mean over workers
  };
  struct Machine {
    std::uint64_t id = 0;
    double cores = 0.0;               ///< 0: unknown
    double used = 0.0, wanted = 0.0;  ///< by the job's processes on it
    std::vector<std::string> processes;
  };

  double iteration_s = 0.0;
  std::int64_t iterations = 0;  ///< that are wholly in the trace, on every node that is told of
  std::int64_t batch_size = 0;
  bool sixteen_bits = false;
  std::vector<Worker> workers;
  std::vector<Server> servers;
  std::vector<Layer> layers;
  std::vector<Machine> machines;
  std::vector<std::string> notes;  ///< what is missing and why
};

/// A node's buffer may have been full before the last iteration: only those that all nodes recorded
/// to their end count. Of a node that recorded less than two nothing is said but a note.
DoctorFacts make_facts(const TraceData& trace, const v1::GetStatusResponse& status);

/// Iterations whose events fit into every node's buffer, at most. Not below 1.
std::int64_t iterations_that_fit(const v1::GetStatusResponse& status);

}  // namespace poseidon
