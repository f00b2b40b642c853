#include "common/node/node_process.h"

#include <unistd.h>

#include <utility>

#include "CLI/CLI.hpp"
#include "common/base/clock.h"
#include "common/base/process_load.h"
#include "common/daemon/service_manager.h"
#include "common/memory/tensor_memory.h"
#include "spdlog/spdlog.h"

namespace poseidon {

void add_node_options(CLI::App& app, NodeOptions& options) {
  app.add_option("--coordinator", options.coordinator, "HOST:PORT of the coordinator")->required();
  app.add_option("--metrics-listen", options.metrics_listen,
                 "ADDR:PORT for Prometheus; :PORT listens on 127.0.0.1 only");
  app.add_option("--join-timeout-s", options.join_timeout_s,
                 "how long to look for the coordinator before giving up")
      ->check(CLI::Range(std::int64_t{1}, kMaxWaitS))
      ->capture_default_str();
  app.add_option("--coordinator-away-s", options.coordinator_away_s,
                 "how long to wait for an unreachable coordinator; its job continues meanwhile")
      ->check(CLI::Range(std::int64_t{1}, kMaxWaitS))
      ->capture_default_str();
  app.add_flag("!--no-shared-memory", options.shared_memory,
               "use sockets even with servers and workers on this machine");
  add_daemon_options(app, options.daemon);
}

void share_memory(const NodeOptions& options) {
  if (!options.shared_memory) return;
  if (const absl::Status shared = share_tensor_memory(); !shared.ok()) {
    spdlog::warn("sockets instead of shared memory with servers and workers on this machine: {}",
                 std::string(shared.message()));
  }
}

absl::Status run_node(const NodeOptions& options, NodeParts parts) {
  const SystemClock clock;
  ControlClientOptions& client_options = parts.client;
  client_options.coordinator = options.coordinator;
  client_options.join_timeout = Milliseconds(options.join_timeout_s * 1000);
  client_options.away_timeout = Milliseconds(options.coordinator_away_s * 1000);
  client_options.join.set_process_id(static_cast<std::uint32_t>(getpid()));
  client_options.join.set_machine(process_load().machine);
  client_options.on_turn = [pulse = parts.pulse, &clock] { pulse->turn(clock.now()); };
  ControlClient client(std::move(client_options), parts.events);
  parts.set_client(&client);
  ServiceManager manager(parts.pulse);
  const StopSignals signals([&](const std::string& name) {
    manager.stopping();
    client.stop_when_released(name, Milliseconds(options.leave_timeout_s * 1000));
  });
  manager.ready(parts.ready);
  const absl::Status status = client.run();
  parts.on_end();
  return status;
}

}  // namespace poseidon
