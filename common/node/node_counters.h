#pragma once

// The counters of a node that `poseidon doctor` compares between two looks (NodeCounters in
// proto/poseidon/v1/control.proto).
//
// Called by: server/server_node.h and sync/node/worker_node.h, for each heartbeat.
// Calls: common/probes/, common/transport/paced_transport.h and common/security/security.h, whose
// counters it copies.

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/probes/node_probe.h"
#include "common/probes/traffic.h"
#include "common/security/security.h"
#include "common/transport/paced_transport.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Figures that a node reads from its disk or its GPU's driver. Empty: it has none, or got no
/// answer.
struct DeviceFigures {
  std::optional<std::uint64_t> disk_free_bytes, disk_bytes;
  std::optional<double> gpu_utilization;  ///< 0 to 1
  std::optional<double> gpu_celsius;
};

/// Size and free space of the file system that holds `folder`.
DeviceFigures disk_figures(const std::filesystem::path& folder);

/// Reads DeviceFigures once a second on a thread of its own. A broken disk or driver may hang, and
/// the heartbeat thread must not wait for it: the coordinator would take the node for dead.
class DeviceSampler {
 public:
  /// The first reading is done when the constructor returns. `read` must outlive the object.
  explicit DeviceSampler(std::function<DeviceFigures()> read);
  DeviceSampler(const DeviceSampler&) = delete;
  DeviceSampler& operator=(const DeviceSampler&) = delete;
  ~DeviceSampler();  ///< waits for a reading in progress

  /// Any thread; does not wait for a reading.
  DeviceFigures last() const;

 private:
  void loop();

  const std::function<DeviceFigures()> read_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  DeviceFigures last_;     ///< guarded by mutex_
  bool stopping_ = false;  ///< guarded by mutex_
  std::thread thread_;
};

/// Sources of counters besides the probes. All of it outlives the node.
struct CounterSources {
  std::vector<const PacedTraffic*> traffic;  ///< of the node's transports, added up
  std::shared_ptr<const Security> security;  ///< null: no connection is ever refused
  const DeviceSampler* devices = nullptr;    ///< null: neither disk nor GPU
};

/// `traffic` is null while the node has no part in a job. Reads atomics and copies; any thread.
void fill_counters(const NodeProbe& probe, const TrafficProbe* traffic,
                   const CounterSources& sources, v1::NodeCounters& counters);

/// `security`'s refusals of peers, by the reasons that occurred; for nodes and coordinator.
void fill_refused_connections(const Security& security,
                              google::protobuf::RepeatedPtrField<v1::RefusedCount>& out);

}  // namespace poseidon
