#pragma once

// What the main() of a server and of a worker share: the options of a node, and its life from
// joining the coordinator to the signal that ends it.
//
// Before: main() has parsed the command line and wired the parts. After: ControlClient calls the
// node's ControlEvents; when run_node returns, nobody reports any more, and main() takes the parts
// down.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/base/loop_pulse.h"
#include "common/daemon/daemon.h"
#include "common/node/control_client.h"

namespace poseidon {

/// Options of servers and workers alike.
struct NodeOptions {
  std::string coordinator;  ///< HOST:PORT
  std::string metrics_listen;
  std::int64_t join_timeout_s = 60;
  std::int64_t coordinator_away_s = 3600;
  bool shared_memory = true;
  DaemonOptions daemon;
};

/// With those of every daemon.
void add_node_options(CLI::App& app, NodeOptions& options);

/// From now on tensors lie where other nodes of this machine can read them, if the options want it;
/// where that is not to be had, sockets do, and the log says so.
void share_memory(const NodeOptions& options);

/// What run_node needs of a node.
struct NodeParts {
  ControlClientOptions client;  ///< transport, security, probe, and who joins
  ControlEvents* events = nullptr;
  LoopPulse* pulse = nullptr;  ///< turns with the heartbeats
  std::string ready;           ///< for the service manager: what it does and where
  /// Before the client runs: who reports to it.
  std::function<void(ControlClient* client)> set_client;
  /// After it has run: ends all that may report to it, on whatever thread, for then it goes.
  std::function<void()> on_end;
};

/// Joins, tells the service manager, and serves events until a signal of StopSignals (then OK), or
/// until ControlClient::run gives up.
absl::Status run_node(const NodeOptions& options, NodeParts parts);

}  // namespace poseidon
