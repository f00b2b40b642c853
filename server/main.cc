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
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/process_load.h"
#include "common/checkpoint/directory_identity.h"
#include "common/grpc/grpc_transport.h"
#include "common/memory/tensor_memory.h"
#include "common/node/link_probe.h"
#include "common/node/node_counters.h"
#include "common/node/node_process.h"
#include "common/pages/node_metrics.h"
#include "common/probes/refusal_log.h"
#include "common/security/security.h"
#include "common/tensor/kernels.h"
#include "common/threads/thread_team.h"
#include "common/transport/background.h"
#include "common/transport/paced_transport.h"
#include "server/server_node.h"
#include "server/shard/shard_service.h"
#include "server/store/checkpoint_keeper.h"
#include "server/store/rocksdb_chunk_store.h"
#include "server/store/store_service.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

struct MainOptions {
  std::string listen;
  std::string data_dir;
  int threads = 0;
  std::int64_t pending_limit_mib = kDefaultPendingLimitBytes >> 20;
  NodeOptions node;
};

void add_options(CLI::App& app, MainOptions& options) {
  app.add_option("--listen", options.listen,
                 "ADDR:PORT to listen on for workers; port 0: any free port")
      ->required();
  app.add_option("--data-dir", options.data_dir, "directory for this server's checkpoints")
      ->required();
  app.add_option("--threads", options.threads,
                 "threads for sums and optimizer steps; 0: half of the cores, at most 8")
      ->check(CLI::Range(0, kMaxTeamThreads))
      ->capture_default_str();
  app.add_option("--pending-limit-mib", options.pending_limit_mib,
                 "MiB of early gradients to hold before workers that are ahead have to wait")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  add_node_options(app, options.node);
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
  POSEIDON_RETURN_IF_ERROR(start_daemon("server", options.node.daemon));
  const auto coordinator =
      parse_option_address("--coordinator", options.node.coordinator, PortZero::kRefused);
  if (!coordinator.ok()) return coordinator.status();
  const auto listen = parse_option_address("--listen", options.listen, PortZero::kAllowed);
  if (!listen.ok()) return listen.status();
  POSEIDON_ASSIGN_OR_RETURN(const std::shared_ptr<Security> security,
                            Security::load(options.node.daemon.security, PeerRole::kServer));
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

  share_memory(options.node);
  const int threads = options.threads > 0 ? options.threads : default_team_threads(usable_cores());
  ThreadTeam team(threads);
  // Which instructions gradients are summed with, and on how many cores.
  spdlog::info("kernels: {}; threads: {}", kernels().name, threads);
  GrpcTransport grpc({.security = security});
  PacedTransport transport(&grpc, tensor_arena(), server_window_bytes());
  std::unique_ptr<NodeMetrics> metrics;
  if (!options.node.metrics_listen.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(
        metrics, NodeMetrics::serve(options.node.metrics_listen, {.role = "server",
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
  Transport& probes = grpc.add_method(kProbeMethod);
  LinkProbe probe(&probes, &refusals, refusal_log(refusals));
  POSEIDON_RETURN_IF_ERROR(probes.listen(*address, &probe).status());
  Transport& stores = grpc.add_method(kStoreMethod);
  std::optional<BackgroundThread> disk(std::in_place);
  CheckpointKeeper keeper(*std::move(store), &*disk, node_probe);
  keeper.remember_owner_in(std::filesystem::path(options.data_dir) / "STORE_OWNER");
  StoreService store_service(&stores, &keeper, &refusals, refusal_log(refusals));
  // The services stop in this order, so that none is called after its end.
  const absl::Cleanup stop = [&] {
    grpc.stop();
    disk.reset();
  };
  POSEIDON_RETURN_IF_ERROR(stores.listen(*address, &store_service).status());
  Transport& attach = grpc.add_method(kAttachMethod, kAttachKeepalive);
  grpc.start();
  POSEIDON_RETURN_IF_ERROR(announce_address(options.node.daemon, *address));

  const DeviceSampler disk_space([&options] { return disk_figures(options.data_dir); });
  ServerNode node(
      {.service = &service,
       .keeper = &keeper,
       .stores = &stores,
       .probe = node_probe,
       .refusals = &refusals,
       .metrics = metrics.get(),
       .link = &probe,
       .threads = threads,
       .set_window =
           [&transport](std::int64_t worker_window) {
             transport.set_window(server_window_bytes(worker_window));
           },
       .counters = {
           .traffic = {&transport.traffic()}, .security = security, .devices = &disk_space}});
  ControlClientOptions client;
  client.transport = &attach;
  client.security = security;
  client.probe = node_probe;
  client.join.set_role(v1::NODE_ROLE_SERVER);
  client.join.set_address(*address);
  client.join.set_metrics_address(metrics == nullptr ? "" : metrics->address());
  client.join.set_store_identity(*identity);
  const absl::Status status =
      run_node(options.node, {.client = std::move(client),
                              .events = &node,
                              .pulse = &pulse,
                              .ready = absl::StrCat("serves shards on ", *address),
                              .set_client = [&node](ControlClient* to) { node.set_client(to); },
                              .on_end =
                                  [&] {
                                    node.end();
                                    keep_freed_tensor_memory();
                                    grpc.stop();
                                    disk.reset();
                                  }});
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
