#include "worker/worker_main.h"
#include "sync/node/worker_node.h"
#include "worker/native_framework.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/process_load.h"
#include "common/grpc/grpc_transport.h"
#include "common/memory/tensor_memory.h"
#include "common/node/link_probe.h"
#include "common/node/node_counters.h"
#include "common/node/node_process.h"
#include "common/pages/gpu_monitor.h"
#include "common/pages/node_metrics.h"
#include "common/probes/refusal_log.h"
#include "common/security/security.h"
#include "common/tensor/kernels.h"
#include "common/threads/thread_team.h"
#include "common/transport/paced_transport.h"
#include "common/wire/factor_wire.h"
#include "common/wire/store_wire.h"
#include "spdlog/spdlog.h"
#include "sync/links/peer_stream.h"
#include "sync/relay/relay_service.h"
#include "worker/data/feed/batches.h"

namespace poseidon {
namespace {

/// Less than the units' TimeoutStopSec.
constexpr std::int64_t kLeaveTimeoutS = 20;

struct MainOptions {
  std::string listen;
  int threads = 0;
  int data_threads = 0;
  std::int64_t server_timeout_s = 30;
  NodeOptions node;
};

void add_options(CLI::App& app, MainOptions& options) {
  app.add_option(
      "--listen", options.listen,
      "ADDR:PORT to listen on for other workers (default: any free port of the address that "
      "reaches the coordinator)");
  app.add_option("--threads", options.threads, "threads that compute; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--data-threads", options.data_threads,
                 "threads that read and decode samples; 0: half of the cores")
      ->check(CLI::Range(0, kMaxDataThreads))
      ->capture_default_str();
  app.add_option(
         "--server-timeout-s", options.server_timeout_s,
         "seconds that a server or another worker may be unreachable before the job recovers "
         "without it")
      ->check(CLI::Range(std::int64_t{1}, kMaxWaitS))
      ->capture_default_str();
  options.node.leave_timeout_s = kLeaveTimeoutS;
  app.add_option("--leave-timeout-s", options.node.leave_timeout_s,
                 "how long to work on after SIGTERM until the job goes on without this worker; 0: "
                 "leaves at once")
      ->check(CLI::Range(std::int64_t{0}, kMaxWaitS))
      ->capture_default_str();
  add_node_options(app, options.node);
}

/// libgomp's threads spin while they wait, and take cores from the server, the worker or the loop
/// that they wait for. libgomp reads how to wait when the program is loaded, so the program
/// replaces itself by one that has the variable in its environment. A value that the operator has
/// set stays.
void wait_without_spinning(char** argv) {
  if (::setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0) != 0) return;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) ::execv(program.c_str(), argv);
  std::fprintf(
      stderr,
      "poseidon-worker cannot start itself again with OMP_WAIT_POLICY=passive in its "
      "environment (%s): its threads may take cores from other processes while they wait\n",
      error ? error.message().c_str() : std::strerror(errno));
}

/// Threads that wait for a failed device or disk may never return: then the process ends here.
void end_node(WorkerNode& node) {
  if (const absl::Status failure = node.failure(); !failure.ok()) {
    spdlog::error("{}", std::string(failure.message()));
    spdlog::default_logger()->flush();
    std::_Exit(kExitRunFailed);
  }
  node.end();
}

absl::Status run(const MainOptions& options, const OpenEngine& open_engine) {
  tune_process();
  POSEIDON_RETURN_IF_ERROR(start_daemon("worker", options.node.daemon));
  const auto coordinator =
      parse_option_address("--coordinator", options.node.coordinator, PortZero::kRefused);
  if (!coordinator.ok()) return coordinator.status();
  POSEIDON_ASSIGN_OR_RETURN(Engine engine, open_engine());
  const auto listen = options.listen.empty()
                          ? HostPort{.host = local_host_towards(*coordinator), .port = 0}
                          : parse_option_address("--listen", options.listen, PortZero::kAllowed);
  if (!listen.ok()) return listen.status();
  POSEIDON_ASSIGN_OR_RETURN(const std::shared_ptr<Security> security,
                            Security::load(options.node.daemon.security, PeerRole::kWorker));
  warn_if_open(to_string(*listen), *security);
  RefusalCounts refusals;
  const auto node_probe = std::make_shared<NodeProbe>();
  const SystemClock clock;
  LoopPulse pulse("heartbeats", clock.now());

  share_memory(options.node);
  spdlog::info("kernels: {}", kernels().name);  // which instructions gradients are summed with
  // Sums, rounds and copies beside a GPU. An engine on the CPU has all cores, and a helper that
  // loses its own holds up the loop.
  ThreadTeam team(engine.gpu_bus_id.empty() ? 1 : default_team_threads(usable_cores()));
  GrpcTransport grpc({.security = security});
  PacedTransport transport(&grpc, tensor_arena());
  PacedTransport peers(&grpc.add_method(kFactorMethod), tensor_arena(), peer_window_bytes());
  // A relay gives and takes as a server does.
  PacedTransport relays(&grpc.add_method(kLocalAggregationMethod), tensor_arena(),
                        server_window_bytes());
  PacedTransport to_relay(&grpc.add_method(kLocalAggregationMethod), tensor_arena());
  std::unique_ptr<GpuMonitor> gpu;
  if (!engine.gpu_bus_id.empty()) {
    auto monitor = open_nvml_monitor(engine.gpu_bus_id);
    if (monitor.ok()) {
      gpu = *std::move(monitor);
    } else {
      spdlog::info("no metrics of the GPU: {}", std::string(monitor.status().message()));
    }
  }
  std::optional<DeviceSampler> devices;
  if (gpu != nullptr) {
    devices.emplace([gpu = gpu.get()] {
      const GpuFigures figures = gpu->read();
      return DeviceFigures{.gpu_utilization = figures.utilization,
                           .gpu_celsius = figures.temperature_celsius};
    });
  }
  std::unique_ptr<NodeMetrics> metrics;
  if (!options.node.metrics_listen.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(
        metrics, NodeMetrics::serve(options.node.metrics_listen,
                                    {.role = "worker",
                                     .probe = node_probe.get(),
                                     .refusals = &refusals,
                                     .traffic = {&transport.traffic(), &peers.traffic(),
                                                 &relays.traffic(), &to_relay.traffic()},
                                     .data_dir = {},
                                     .security = security,
                                     .gpu = gpu.get(),
                                     .pulse = &pulse}));
    spdlog::info("metrics at {}", metrics->url());
  }
  PeerDoor door(&peers, &refusals, refusal_log(refusals));
  Transport& stores = grpc.add_method(kStoreMethod);
  const auto address = peers.listen(to_string(*listen), &door);
  if (!address.ok()) return address.status();
  RelayService relay(&relays, &refusals, refusal_log(refusals));
  POSEIDON_RETURN_IF_ERROR(relays.listen(*address, &relay).status());
  Transport& probes = grpc.add_method(kProbeMethod);
  LinkProbe probe(&probes, &refusals, refusal_log(refusals));
  POSEIDON_RETURN_IF_ERROR(probes.listen(*address, &probe).status());
  POSEIDON_RETURN_IF_ERROR(announce_address(options.node.daemon, *address));
  Transport& attach = grpc.add_method(kAttachMethod, kAttachKeepalive);
  grpc.start();
  absl::Status status;
  {
    NativeFramework framework({.engine = engine,
                               .threads = options.threads,
                               .data_threads = options.data_threads > 0
                                                   ? options.data_threads
                                                   : default_data_threads(usable_cores())});
    WorkerNodeOptions node_options;
    node_options.framework = &framework;
    node_options.set_windows = [&](std::int64_t worker_window) {
      transport.set_window(worker_window);
      peers.set_window(peer_window_bytes(worker_window));
      relays.set_window(server_window_bytes(worker_window));
      to_relay.set_window(worker_window);
    };
    node_options.peers = {.transport = &peers, .door = &door, .relays = &to_relay, .relay = &relay};
    node_options.stores = &stores;
    node_options.probe = node_probe;
    node_options.counters = {
        .traffic = {&transport.traffic(), &peers.traffic(), &relays.traffic(), &to_relay.traffic()},
        .security = security,
        .devices = devices ? &*devices : nullptr};
    node_options.away_timeout = Milliseconds(options.node.coordinator_away_s * 1000);
    node_options.sync.syncer.team = &team;
    node_options.sync.syncer.log = [](const std::string& text) { spdlog::warn("{}", text); };
    node_options.sync.syncer.give_up_after = Milliseconds(options.server_timeout_s * 1000);
    WorkerNode node(&transport, &refusals, metrics.get(), &probe, node_options);
    ControlClientOptions client;
    client.transport = &attach;
    client.security = security;
    client.probe = node_probe;
    client.join.set_role(v1::NODE_ROLE_WORKER);
    client.join.set_address(*address);
    client.join.set_device(engine.device);
    client.join.set_metrics_address(metrics == nullptr ? "" : metrics->address());
    status = run_node(options.node, {.client = std::move(client),
                                     .events = &node,
                                     .pulse = &pulse,
                                     .ready = absl::StrCat("works on ", *address),
                                     .set_client = [&](ControlClient* to) { node.set_client(to); },
                                     .on_end = [&node] { end_node(node); }});
  }
  grpc.stop();
  spdlog::info("stopped; sent {} MB of tensors through shared memory",
               (transport.traffic().shared_bytes + peers.traffic().shared_bytes +
                relays.traffic().shared_bytes + to_relay.traffic().shared_bytes) /
                   1'000'000);
  return status;
}

}  // namespace

int worker_main(int argc, char** argv, CLI::App& app, const OpenEngine& open_engine) {
  MainOptions options;
  add_options(app, options);
  return daemon_main(app, argc, argv, [&] {
    if (std::getenv("OMP_WAIT_POLICY") == nullptr) wait_without_spinning(argv);
    return run(options, open_engine);
  });
}

}  // namespace poseidon
