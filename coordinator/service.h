#pragma once

// The coordinator on the network: gRPC callback API around Cluster, and the timer.
//
// Called by: nodes (common/node/control_client.cc) and operators (cli/). Calls: Cluster, which
// keeps the state.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/security/security.h"
#include "common/threads/loop_pulse.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/planning/jobs/job_resolver.h"

namespace poseidon {

struct CoordinatorOptions {
  std::string listen = "127.0.0.1:0";  ///< HOST:PORT; port 0: any free one
  std::filesystem::path state_dir;
  std::string metrics_listen;  ///< "" : none
  std::string status_listen;   ///< of the status page, as parse_page_address takes it; "" : none
  ClusterOptions cluster;
  /// Connects to what nodes announce, and tells of those that do not answer.
  bool probes_addresses = true;
  std::shared_ptr<Security> security = Security::none();
  /// Called when its ports are open, before it serves any request, with the listening address. If
  /// it returns OK, a stored job resumes; otherwise start() returns its error. May be null.
  std::function<absl::Status(const std::string& address)> on_listening;
  LoopPulse* pulse = nullptr;  ///< turns with the timer, for /healthz; never null
};

/// Runs from start() until shutdown() or destruction. Thread-safe.
class CoordinatorService {
 public:
  /// ALREADY_EXISTS when the port or the state directory is taken, INVALID_ARGUMENT for invalid
  /// options. `clock` must outlive the service.
  static absl::StatusOr<std::unique_ptr<CoordinatorService>> start(
      const CoordinatorOptions& options, JobResolver resolver, const Clock* clock);
  virtual ~CoordinatorService() = default;

  /// The actual listening address, HOST:PORT.
  virtual std::string address() const = 0;
  virtual std::string metrics_address() const = 0;
  virtual std::string metrics_url() const = 0;
  virtual std::string status_url() const = 0;
  /// Ends the running job, or leaves it to the next process (as `how` says, or else
  /// ClusterOptions::on_shutdown), tells every node, writes the files, closes the port. Some
  /// seconds at most. Idempotent.
  virtual void shutdown(const std::string& reason,
                        std::optional<OnShutdown> how = std::nullopt) = 0;
};

}  // namespace poseidon
