#pragma once

// The facts about a training job for `poseidon doctor`: from a trace of some iterations (how long
// each node computed, waited and sent), the coordinator's status (cores, disks), and the counters
// that nodes report before and after the trace. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/remote/trace_data.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Seconds are per iteration, means over those that the trace has wholly.
struct DoctorFacts {
  struct Node {
    std::string name;  ///< "worker 0 (10.0.0.3:4711)"
    std::uint64_t machine = 0;
    double used = 0.0, wanted = 0.0;  ///< cores, as of the machine
    // Rates of its streams while a message is under way, over all peers together; empty when it
    // moved too few bytes.
    std::optional<double> send_bytes_per_s, receive_bytes_per_s;  ///< of its best stream each way
    double send_s = 0.0, receive_s = 0.0;  ///< that any message of its was on its way
    double sent_bytes = 0.0, received_bytes = 0.0;
  };
  struct Worker {
    Node node;
    /// Forward, backward and the steps of layers that go by SFB. The median of the iterations:
    /// where other programs run too, single ones take long.
    double compute_s = 0.0;
    /// The mean without the longest one: a process that is stopped now and then is as fast as the
    /// others in most iterations, and all workers wait for it in the rest.
    double compute_mean_s = 0.0;
    /// The shortest tenth of the iterations: the speed of its processor when the process runs
    /// undisturbed.
    double compute_quick_s = 0.0;
    double stall_s = 0.0;               ///< waiting for parameters
    double input_s = 0.0;               ///< waiting for samples
    std::uint64_t corrupt_samples = 0;  ///< that could not be read, since the epoch began
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
    bool by_sfb = false;   ///< then `bytes` cross no wire, its factors do
    double bytes = 0.0;    ///< of its parameters on the wire
    double stall_s = 0.0;  ///< mean over workers
  };
  struct Machine {
    std::uint64_t id = 0;
    double cores = 0.0;               ///< 0: unknown
    double used = 0.0, wanted = 0.0;  ///< by the job's processes on it
    std::vector<std::string> processes;
  };

  /// A daemon, by its own counters (cli/doctor/doctor_counters.h).
  struct Daemon {
    enum class Role { kCoordinator, kServer, kWorker };
    Role role = Role::kCoordinator;
    std::string name;  ///< as the node's
    // While the doctor looked.
    std::map<std::string, double> broken_streams;       ///< by the node at the other end
    std::map<std::string, double> refused_messages;     ///< by reason; those that tell of trouble
    std::map<std::string, double> refused_connections;  ///< likewise
    double shared_memory_bytes = 0.0, socket_bytes = 0.0;  ///< sent
    std::optional<double> certificate_left_s;
    // Of a worker.
    /// Forward and backward per iteration, since its epoch began until the look and during it;
    /// nothing where the one or the other is too short to tell.
    std::optional<double> compute_before_s, compute_now_s;
    std::optional<double> gpu_utilization, gpu_celsius;
    // Of a server.
    double streams = 0.0;
    double paused_streams = 0.0;  ///< before and after
    double early_gradient_bytes = 0.0;
    double store_errors = 0.0;
    std::optional<double> disk_free_bytes, disk_bytes;
    double snapshot_bytes = 0.0;    ///< of its part of a checkpoint, about; 0: not known
    double snapshots_failed = 0.0;  ///< parts of checkpoints, while the doctor looked
    // Of the coordinator.
    double checkpoints_failed = 0.0;  ///< while the doctor looked; not those of an epoch's end
    double checkpoint_every = 0.0;
    /// Since the newest, or the beginning, as long as none was committed while the doctor looked.
    double iterations_since_checkpoint = 0.0;
  };

  double iteration_s = 0.0;
  std::int64_t iterations = 0;  ///< that the trace has completely, on every node
  std::int64_t batch_size = 0;
  bool sixteen_bits = false;
  /// All nodes have one host's address: no network card is between them. (Containers and namespaces
  /// have addresses of their own.)
  bool one_host = false;
  std::vector<Worker> workers;
  std::vector<Server> servers;
  std::vector<Layer> layers;
  std::vector<Machine> machines;
  std::vector<Daemon> daemons;     ///< those that sent counters before and after
  std::vector<std::string> notes;  ///< missing nodes and the reasons
};

/// A node's buffer may have been full before the last iteration: only those that all nodes recorded
/// to their end count. A node that recorded fewer than two gets a note only.
DoctorFacts make_facts(const TraceData& trace, const v1::GetStatusResponse& status);

/// Iterations whose events fit into every node's buffer, at most. Not below 1.
std::int64_t iterations_that_fit(const v1::GetStatusResponse& status);

}  // namespace poseidon
