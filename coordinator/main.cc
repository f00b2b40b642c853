// poseidon-coordinator: reads the options, wires the parts, waits for a signal.

#include <chrono>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/daemon/daemon.h"
#include "common/daemon/service_manager.h"
#include "common/security/security.h"
#include "common/threads/mutex.h"
#include "coordinator/planning/jobs/job_resolver.h"
#include "coordinator/service.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// Four polls of `poseidon submit --wait`.
constexpr std::chrono::seconds kLastWords{1};

struct MainOptions {
  std::string listen;
  std::string state_dir;
  std::string run_root;
  std::string metrics_listen;
  std::string status_listen;
  std::uint32_t lease_ms = 3000;
  std::uint32_t heartbeat_ms = 500;
  std::uint32_t wait_for_nodes_s = 120;
  std::uint32_t prepare_timeout_s = 600;
  std::uint32_t progress_timeout_s = 30;
  std::uint32_t checkpoint_on_stop_s = 10;
  std::string job_on_stop = "end";
  DaemonOptions daemon;
};

void add_options(CLI::App& app, MainOptions& options) {
  app.add_option("--listen", options.listen,
                 "ADDR:PORT to listen on for nodes and operators; port 0: any free port")
      ->required();
  app.add_option("--state-dir", options.state_dir,
                 "directory for the coordinator's state and, by default, for runs")
      ->required();
  app.add_option("--run-root", options.run_root,
                 "folder that all run directories lie in; without it `runs` in --state-dir");
  app.add_option("--metrics-listen", options.metrics_listen,
                 "ADDR:PORT for Prometheus; :PORT listens on 127.0.0.1 only");
  app.add_option("--status-listen", options.status_listen,
                 "ADDR:PORT for the status page; PORT listens on 127.0.0.1 only");
  app.add_option("--lease-ms", options.lease_ms,
                 "milliseconds of silence after which a node is lost")
      ->capture_default_str();
  app.add_option("--heartbeat-ms", options.heartbeat_ms, "milliseconds between heartbeats")
      ->capture_default_str();
  app.add_option("--wait-for-nodes-s", options.wait_for_nodes_s,
                 "seconds that a job waits for missing nodes before it fails")
      ->capture_default_str();
  app.add_option(
         "--prepare-timeout-s", options.prepare_timeout_s,
         "seconds that nodes may take to list their data and to read a checkpoint; then the job "
         "fails or, once it has trained, continues without the nodes that are not ready")
      ->check(CLI::Range(1, 7 * 86400))
      ->capture_default_str();
  app.add_option("--progress-timeout-s", options.progress_timeout_s,
                 "seconds without progress, though all nodes are well, after which a job raises an "
                 "alarm, and after as many again recovers; at least 10 of its iterations")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  app.add_option("--job-on-stop", options.job_on_stop,
                 "what a clean stop (SIGTERM) does with the job: end it, or keep it for the next "
                 "coordinator with "
                 "this state directory while its nodes continue to train")
      ->check(CLI::IsMember({"end", "keep"}))
      ->capture_default_str();
  app.add_option(
         "--checkpoint-on-stop-s", options.checkpoint_on_stop_s,
         "seconds that a clean stop may take for a final checkpoint; 0: no final checkpoint")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str();
  add_daemon_options(app, options.daemon);
}

/// Set once, by the signal thread; awaited by main.
class StopFlag {
 public:
  void set(const std::string& reason) {
    const MutexLock lock(mutex_);
    reason_ = reason;
    changed_.notify_all();
  }
  /// Without a deadline on purpose: the coordinator serves until it is told to stop.
  std::string wait() {
    MutexLock lock(mutex_);
    changed_.wait(mutex_,
                  [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !reason_.empty(); });
    return reason_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
};

absl::Status run(const MainOptions& options) {
  POSEIDON_RETURN_IF_ERROR(start_daemon("coordinator", options.daemon));
  StopFlag stop;
  const StopSignals signals([&stop](const std::string& name) { stop.set(name); });
  const SystemClock clock;
  LoopPulse pulse("the timer", clock.now());
  ServiceManager manager(&pulse);
  POSEIDON_ASSIGN_OR_RETURN(const std::shared_ptr<Security> security,
                            Security::load(options.daemon.security, PeerRole::kCoordinator));
  warn_if_open(options.listen, *security);
  CoordinatorOptions service_options{.listen = options.listen,
                                     .state_dir = options.state_dir,
                                     .metrics_listen = options.metrics_listen,
                                     .status_listen = options.status_listen,
                                     .cluster = {},
                                     .security = security,
                                     .on_listening =
                                         [&options](const std::string& address) {
                                           return announce_address(options.daemon, address);
                                         },
                                     .pulse = &pulse};
  service_options.cluster.run_root = options.run_root;
  service_options.cluster.membership.lease = Milliseconds(options.lease_ms);
  service_options.cluster.membership.heartbeat = Milliseconds(options.heartbeat_ms);
  service_options.cluster.job.waiting_timeout = std::chrono::seconds(options.wait_for_nodes_s);
  service_options.cluster.job.preparing_timeout = std::chrono::seconds(options.prepare_timeout_s);
  service_options.cluster.job.standstill.least = std::chrono::seconds(options.progress_timeout_s);
  service_options.cluster.on_shutdown =
      options.job_on_stop == "keep" ? OnShutdown::kKeepJob : OnShutdown::kEndJob;
  service_options.cluster.shutdown_checkpoint_timeout =
      std::chrono::seconds(options.checkpoint_on_stop_s);
  // Of `poseidon local`, which has stopped asking when it stops us.
  if (options.daemon.parent_pid == 0) service_options.cluster.last_words = kLastWords;
  auto service = CoordinatorService::start(service_options, resolve_job, &clock);
  if (!service.ok()) return service.status();
  if (!options.metrics_listen.empty()) {
    spdlog::info("metrics at {}", (*service)->metrics_url());
  }
  if (!options.status_listen.empty()) {
    spdlog::info("status page at {}/", (*service)->status_url());
  }
  manager.ready(absl::StrCat("listens on ", (*service)->address()));
  const std::string reason = stop.wait();
  manager.stopping();
  spdlog::info("stops ({})", reason);
  // Who closes a terminal need not know that a job hangs on it.
  const auto how = reason == "SIGHUP" ? std::optional(OnShutdown::kKeepJob) : std::nullopt;
  (*service)->shutdown(reason, how);
  return absl::OkStatus();
}

}  // namespace
}  // namespace poseidon

int main(int argc, char** argv) {
  CLI::App app("Poseidon's coordinator: keeps the cluster's members, plans and watches its job.",
               "poseidon-coordinator");
  poseidon::MainOptions options;
  poseidon::add_options(app, options);
  return poseidon::daemon_main(app, argc, argv, [&options] { return poseidon::run(options); });
}
