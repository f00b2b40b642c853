#pragma once

// What a node's probes say, as a heartbeat tells it and as Prometheus reads it.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/data_probe.h"
#include "common/plan.h"
#include "common/traffic.h"
#include "common/wire.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Running totals of the probes. `traffic` (no job) and `data` (no worker) may be null.
void fill_heartbeat_totals(const TrafficProbe* traffic, const DataProbe* data,
                           const RefusalCounts& refusals, v1::Heartbeat& heartbeat);

/// Serves the node's probes on http://ADDRESS/metrics (DESIGN: "What is measured"). Reads them only
/// when it is scraped, so it costs nothing otherwise. Any thread.
class NodeMetrics {
 public:
  /// `role`: "worker" or "server". Fails when the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<NodeMetrics>> serve(const std::string& address,
                                                            std::string role,
                                                            const RefusalCounts* refusals);
  ~NodeMetrics();

  /// From now on the layers of this plan are shown, and a worker's input; null: none.
  void show(std::shared_ptr<const Plan> plan, std::shared_ptr<const TrafficProbe> traffic,
            std::shared_ptr<const DataProbe> data = nullptr);
  /// HOST:PORT really listened on.
  const std::string& address() const;

 private:
  class Impl;
  explicit NodeMetrics(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  ///< shared: the HTTP server holds what it scrapes weakly
};

}  // namespace poseidon
