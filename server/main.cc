// poseidon-server: holds a shard of the parameters, sums gradients, steps, sends parameters back.
// Reads the options, wires the parts, waits for a signal.

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/background.h"
#include "common/clock.h"
#include "common/control_client.h"
#include "common/daemon.h"
#include "common/directory_identity.h"
#include "common/grpc_transport.h"
#include "common/kernels.h"
#include "common/link_probe.h"
#include "common/node_metrics.h"
#include "common/paced_transport.h"
#include "common/process_load.h"
#include "common/refusal_log.h"
#include "common/security.h"
#include "common/service_manager.h"
#include "common/status_macros.h"
#include "common/tensor_memory.h"
#include "common/thread_team.h"
#include "server/checkpoint_keeper.h"
#include "server/rocksdb_chunk_store.h"
#include "server/server_node.h"
#include "server/shard_service.h"
#include "server/store_service.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

struct MainOptions {
  std::string coordinator;
  std::string listen;
  std::string data_dir;
  std::string metrics_listen;
  int threads = 0;
  std::int64_t pending_limit_mib = kDefaultPendingLimitBytes >> 20;
  std::int64_t join_timeout_s = 60;
  std::int64_t coordinator_away_s = 3600;
  bool shared_memory = true;
  DaemonOptions daemon;
};

void add_options(CLI::App& app, MainOptions& options) {
  app.add_option("--coordinator", options.coordinator, "HOST:PORT of the coordinator")->required();
  app.add_option("--listen", options.listen, "ADDR:PORT for workers; port 0: any free")->required();
  app.add_option("--data-dir", options.data_dir, "directory of this server's own data")->required();
  app.add_option("--metrics-listen", options.metrics_listen,
                 "ADDR:PORT for Prometheus; :PORT is this machine alone");
  app.add_option("--threads", options.threads,
                 "threads that sum and step; 0: half of the cores, at most 8")
      ->check(CLI::Range(0, kMaxTeamThreads))
      ->capture_default_str();
  app.add_option("--pending-limit-mib", options.pending_limit_mib,
                 "early gradients held before workers who are ahead are made to wait")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--join-timeout-s", options.join_timeout_s,
                 "how long to look for the coordinator before giving up")
      ->check(CLI::Range(std::int64_t{1}, kMaxWaitS))
      ->capture_default_str();
  app.add_option("--coordinator-away-s", options.coordinator_away_s,
                 "how long to wait for a coordinator that is away; a job goes on meanwhile")
      ->check(CLI::Range(std::int64_t{1}, kMaxWaitS))
      ->capture_default_str();
  app.add_flag("!--no-shared-memory", options.shared_memory,
               "use sockets even with workers of this machine");
  add_daemon_options(app, options.daemon);
}

absl::Status make_data_dir(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || access(path.c_str(), W_OK) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--data-dir ", path,
                                                   ": cannot be created or written to (",
                                                   error ? error.message() : "not writable", ")"));
  }
  return absl::OkStatus();
}

absl::Status run(const MainOptions& options) {
  tune_process();
  POSEIDON_RETURN_IF_ERROR(start_daemon("server", options.daemon));
  const auto coordinator = parse_host_port(options.coordinator, PortZero::kRefused);
  if (!coordinator.ok()) return coordinator.status();
  const auto listen = parse_host_port(options.listen, PortZero::kAllowed);
  if (!listen.ok()) return listen.status();
  POSEIDON_ASSIGN_OR_RETURN(const std::shared_ptr<Security> security,
                            Security::load(options.daemon.security, PeerRole::kServer));
  warn_if_open(options.listen, *security);
  POSEIDON_RETURN_IF_ERROR(make_data_dir(options.data_dir));
  const auto identity =
      directory_identity(options.data_dir, "STORE_IDENTITY",
                         "use an empty --data-dir and give up the checkpoints in this one");
  if (!identity.ok()) return identity.status();
  auto store = open_rocksdb_chunk_store(std::filesystem::path(options.data_dir) / "checkpoints");
  if (!store.ok()) return store.status();
  RefusalCounts refusals;
  const auto node_probe = std::make_shared<NodeProbe>();
  const SystemClock clock;
  LoopPulse pulse("heartbeats", clock.now());

  if (options.shared_memory) {
    if (const absl::Status shared = share_tensor_memory(); !shared.ok()) {
      spdlog::warn("workers of this machine are served over sockets: {}",
                   std::string(shared.message()));
    }
  }
  const int threads = options.threads > 0 ? options.threads : default_team_threads(usable_cores());
  ThreadTeam team(threads);
  // Which instructions gradients are summed with, and on how many cores.
  spdlog::info("kernels: {}; threads: {}", kernels().name, threads);
  GrpcTransport grpc({.security = security});
  PacedTransport transport(&grpc, tensor_arena(), server_window_bytes());
  std::unique_ptr<NodeMetrics> metrics;
  if (!options.metrics_listen.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(
        metrics, NodeMetrics::serve(options.metrics_listen, {.role = "server",
                                                             .probe = node_probe.get(),
                                                             .refusals = &refusals,
                                                             .traffic = {&transport.traffic()},
                                                             .data_dir = options.data_dir,
                                                             .security = security,
                                                             .pulse = &pulse}));
    spdlog::info("metrics at {}", metrics->url());
  }
  ShardService service(&transport, &refusals, refusal_log(refusals),
                       options.pending_limit_mib << 20, &team);
  const auto address = transport.listen(to_string(*listen), &service);
  if (!address.ok()) return address.status();
  LinkProbe probe(&grpc.for_method(kProbeMethod));
  POSEIDON_RETURN_IF_ERROR(grpc.for_method(kProbeMethod).listen(*address, &probe).status());
  Transport& stores = grpc.for_method(kStoreMethod);
  std::optional<BackgroundThread> disk(std::in_place);
  CheckpointKeeper keeper(*std::move(store), &*disk, node_probe);
  keeper.remember_owner_in(std::filesystem::path(options.data_dir) / "STORE_OWNER");
  StoreService store_service(&stores, &keeper);
  // Whatever ends us, nobody calls a service that is gone: they stop in this order.
  const absl::Cleanup stop = [&] {
    grpc.stop();
    disk.reset();
  };
  POSEIDON_RETURN_IF_ERROR(stores.listen(*address, &store_service).status());
  Transport& attach = grpc.for_method(kAttachMethod, kAttachKeepalive);
  grpc.start();
  POSEIDON_RETURN_IF_ERROR(announce_address(options.daemon, *address));

  ServerNode node({.service = &service,
                   .keeper = &keeper,
                   .stores = &stores,
                   .probe = node_probe,
                   .refusals = &refusals,
                   .metrics = metrics.get(),
                   .link = &probe,
                   .threads = threads,
                   .set_window = [&transport](std::int64_t worker_window) {
                     transport.set_window(server_window_bytes(worker_window));
                   }});
  ControlClientOptions client_options;
  client_options.coordinator = options.coordinator;
  client_options.transport = &attach;
  client_options.security = security;
  client_options.join_timeout = Milliseconds(options.join_timeout_s * 1000);
  client_options.away_timeout = Milliseconds(options.coordinator_away_s * 1000);
  client_options.join.set_role(v1::NODE_ROLE_SERVER);
  client_options.join.set_address(*address);
  client_options.join.set_metrics_address(metrics == nullptr ? "" : metrics->address());
  client_options.join.set_store_identity(*identity);
  client_options.join.set_process_id(static_cast<std::uint32_t>(getpid()));
  client_options.probe = node_probe;
  client_options.on_turn = [&] { pulse.turn(clock.now()); };
  ControlClient client(client_options, &node);
  node.set_client(&client);
  absl::Status status;
  {
    ServiceManager manager(&pulse);
    const StopSignals signals([&](const std::string& name) {
      manager.stopping();
      client.stop(name);
    });
    manager.ready(absl::StrCat("serves shards on ", *address));
    status = client.run();
  }
  keep_freed_tensor_memory();
  grpc.stop();
  disk.reset();
  spdlog::info("stopped; sent {} MB of tensors through shared memory",
               transport.traffic().shared_bytes / 1'000'000);
  return status;
}

}  // namespace
}  // namespace poseidon

int main(int argc, char** argv) {
  CLI::App app("Poseidon's parameter server: holds a shard, sums gradients, steps the optimizer.",
               "poseidon-server");
  poseidon::MainOptions options;
  poseidon::add_options(app, options);
  return poseidon::daemon_main(app, argc, argv, [&options] { return poseidon::run(options); });
}
