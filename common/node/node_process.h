#pragma once

// Shared by the main() of servers and workers: the options of a node, and its life from joining the
// coordinator to the signal that ends it.
//
// Called by: main(), after it has parsed the command line and wired the parts. Calls:
// ControlClient, which calls the node's ControlEvents. When run_node returns, no part reports any
// more, and main() destroys the parts.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/daemon/daemon.h"
#include "common/node/control_client.h"
#include "common/threads/loop_pulse.h"

namespace poseidon {

/// Options of servers and workers alike.
struct NodeOptions {
  std::string coordinator;  ///< HOST:PORT
  std::string metrics_listen;
  std::int64_t join_timeout_s = 60;
  std::int64_t coordinator_away_s = 3600;
  bool shared_memory = true;
  /// How long a node that is to stop works on until the job goes on without it; 0: it leaves at
  /// once.
  std::int64_t leave_timeout_s = 0;
  DaemonOptions daemon;
};

/// With those of every daemon.
void add_node_options(CLI::App& app, NodeOptions& options);

/// Allocates tensors in shared memory from now on, if the options say so. When the machine does not
/// support it, logs that and uses sockets.
void share_memory(const NodeOptions& options);

/// The parts of a node that run_node uses.
struct NodeParts {
  ControlClientOptions client;  ///< transport, security, probe and the Join message
  ControlEvents* events = nullptr;
  LoopPulse* pulse = nullptr;  ///< turns with the heartbeats
  std::string ready;           ///< status line for the service manager
  /// Called before the client runs: passes it to the parts that report.
  std::function<void(ControlClient* client)> set_client;
  /// Ends all parts that may report to the client, on any thread. Called after the client has run
  /// and before it is destroyed.
  std::function<void()> on_end;
};

/// Joins, tells the service manager, and serves events until a signal of StopSignals (then OK), or
/// until ControlClient::run gives up.
absl::Status run_node(const NodeOptions& options, NodeParts parts);

}  // namespace poseidon
