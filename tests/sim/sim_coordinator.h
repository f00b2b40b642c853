#pragma once

// A coordinator process on the in-memory network: the real Cluster on a disk that outlives it.
//
// Called by: sim_control.cc. Calls: coordinator/cluster/cluster.h.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/transport/memory_transport.h"
#include "coordinator/cluster/cluster.h"
#include "tests/sim/sim_control.h"
#include "tests/sim/sim_server.h"

namespace poseidon::sim {

/// What survives a coordinator: its state directory is real (in memory, where the machine has such
/// a file system), the metrics of its runs are here.
struct SimCoordinatorDisk {
  std::filesystem::path state;
  std::map<std::string, std::string> metrics;  ///< by run directory
};

/// Observes every message that a coordinator sends and receives. `what`: the message's name.
using ControlProbe = std::function<void(bool sent, const std::string& what)>;
/// An epoch has begun anew at this iteration, after `done` of it and later were finished.
using RollBackProbe = std::function<void(Iteration iteration, Iteration done)>;

/// A node is told of its part in this epoch.
using AssignProbe = std::function<void(Epoch epoch)>;

struct SimCoordinatorOptions {
  ClusterOptions cluster;
  std::uint64_t seed = 0;
  Nanoseconds slowest_disk{0};
  ControlProbe probe;
  RollBackProbe rolled_back;
  AssignProbe assigns;
};

class SimCoordinator {
 public:
  SimCoordinator(Transport* transport, const SimCoordinatorOptions& options,
                 SimCoordinatorDisk* disk);
  ~SimCoordinator();

  Cluster& cluster() { return *cluster_; }

 private:
  class Link;
  class Links;
  class Upload;
  class Uploads;
  class LoopClock;

  void tick();

  Transport* const transport_;
  const SimCoordinatorOptions options_;
  std::unique_ptr<LoopClock> clock_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Links> links_;
  std::unique_ptr<Uploads> uploads_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon::sim
