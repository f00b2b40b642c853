#include "client/program_node.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/declare.h"
#include "common/base/check.h"
#include "common/base/process_load.h"
#include "common/daemon/daemon.h"
#include "common/grpc/grpc_transport.h"
#include "common/memory/tensor_memory.h"
#include "common/node/link_probe.h"
#include "common/probes/refusal_log.h"
#include "common/threads/thread_team.h"
#include "common/transport/paced_transport.h"
#include "common/wire/factor_wire.h"
#include "common/wire/store_wire.h"
#include "spdlog/spdlog.h"
#include "sync/links/peer_stream.h"
#include "sync/relay/relay_service.h"

namespace poseidon {
namespace {

/// Threads inherit it: signals are the program's own threads' business.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

ProgramLink::Result result_of(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return ProgramLink::Result::kTimeout;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kAlreadyExists:
      return ProgramLink::Result::kRefused;
    default:
      return ProgramLink::Result::kFailed;
  }
}

/// Where this worker listens for others.
absl::StatusOr<std::string> listen_address(const ClientOptions& options) {
  if (!options.listen.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(const HostPort address,
                              parse_option_address("listen", options.listen, PortZero::kAllowed));
    return to_string(address);
  }
  POSEIDON_ASSIGN_OR_RETURN(
      const HostPort coordinator,
      parse_option_address("coordinator", options.coordinator, PortZero::kRefused));
  return to_string(HostPort{.host = local_host_towards(coordinator), .port = 0});
}

/// The address that others are told, of the one that the system gave.
absl::StatusOr<std::string> told_address(const ClientOptions& options, const std::string& bound) {
  if (options.advertise.empty()) return bound;
  POSEIDON_ASSIGN_OR_RETURN(HostPort address, parse_host_port(bound, PortZero::kRefused));
  address.host = options.advertise;
  return to_string(address);
}

}  // namespace

ProgramNode::ProgramNode(ClientOptions options, std::string job_json, ProgramParts* parts)
    : options_(std::move(options)), job_json_(std::move(job_json)), parts_(parts) {}

ProgramNode::~ProgramNode() {
  leave("the program ends");
  if (thread_.joinable()) thread_.join();
}

void ProgramNode::start() {
  const BlockedSignals blocked;
  thread_ = std::thread([this] { run(); });
}

void ProgramNode::leave(const std::string& reason) {
  const MutexLock lock(mutex_);
  is_leaving_ = true;
  if (client_ != nullptr) client_->stop(reason);
}

void ProgramNode::run() {
  absl::Status status;
  auto security = Security::load(options_.tls, PeerRole::kWorker);
  status = security.status();
  const auto is_cancelled = [this] {
    const MutexLock lock(mutex_);
    return is_leaving_;
  };
  if (status.ok()) {
    const absl::StatusOr<std::string> job = declare(options_, job_json_, *security, is_cancelled);
    status = job.ok() ? take_part(*security, *job) : job.status();
  }
  if (status.ok()) status = absl::CancelledError("this worker has left the job");
  parts_->link->end(result_of(status), /*done=*/false, std::string(status.message()));
}

/// As worker/worker_main.cc does for our own engine.
absl::Status ProgramNode::take_part(const std::shared_ptr<Security>& security,
                                    const std::string& job) {
  RefusalCounts refusals;
  const auto node_probe = std::make_shared<NodeProbe>();
  ThreadTeam team(1);
  GrpcTransport grpc({.security = security});
  PacedTransport transport(&grpc, tensor_arena());
  PacedTransport peers(&grpc.add_method(kFactorMethod), tensor_arena(), peer_window_bytes());
  PacedTransport relays(&grpc.add_method(kLocalAggregationMethod), tensor_arena(),
                        server_window_bytes());
  PacedTransport to_relay(&grpc.add_method(kLocalAggregationMethod), tensor_arena());
  PeerDoor door(&peers, &refusals, refusal_log(refusals));
  Transport& stores = grpc.add_method(kStoreMethod);
  POSEIDON_ASSIGN_OR_RETURN(const std::string wanted, listen_address(options_));
  POSEIDON_ASSIGN_OR_RETURN(const std::string bound, peers.listen(wanted, &door));
  RelayService relay(&relays, &refusals, refusal_log(refusals));
  POSEIDON_RETURN_IF_ERROR(relays.listen(bound, &relay).status());
  Transport& probes = grpc.add_method(kProbeMethod);
  LinkProbe probe(&probes, &refusals, refusal_log(refusals));
  POSEIDON_RETURN_IF_ERROR(probes.listen(bound, &probe).status());
  POSEIDON_ASSIGN_OR_RETURN(const std::string told, told_address(options_, bound));
  Transport& attach = grpc.add_method(kAttachMethod, kAttachKeepalive);
  grpc.start();
  absl::Status status;
  {
    ProgramFramework framework(parts_, [this] { leave("its job has ended"); });
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
        .security = security};
    node_options.away_timeout = options_.away_timeout;
    node_options.sync.syncer.team = &team;
    node_options.sync.syncer.log = [](const std::string& text) { spdlog::warn("{}", text); };
    node_options.sync.syncer.give_up_after = options_.server_timeout;
    WorkerNode node(&transport, &refusals, /*metrics=*/nullptr, &probe, node_options);
    ControlClientOptions client;
    client.transport = &attach;
    client.security = security;
    client.probe = node_probe;
    client.join.set_role(v1::NODE_ROLE_WORKER);
    client.join.set_address(told);
    client.join.set_job(job);
    client.join.set_rank(join_rank(options_));
    client.join.set_device(options_.device.empty() ? "program" : options_.device);
    status = serve(std::move(client), node);
  }
  grpc.stop();
  return status;
}

/// As common/node/node_process.h, for a process that belongs to somebody else.
absl::Status ProgramNode::serve(ControlClientOptions options, WorkerNode& node) {
  options.coordinator = options_.coordinator;
  options.join_timeout = options_.join_timeout;
  options.away_timeout = options_.away_timeout;
  options.join.set_process_id(static_cast<std::uint32_t>(::getpid()));
  options.join.set_machine(process_load().machine);
  ControlClient client(std::move(options), &node);
  node.set_client(&client);
  {
    const MutexLock lock(mutex_);
    if (is_leaving_) return absl::OkStatus();
    client_ = &client;
  }
  const absl::Status status = client.run();
  {
    const MutexLock lock(mutex_);
    client_ = nullptr;
  }
  node.end();
  return status;
}

}  // namespace poseidon
