#pragma once

// A server's or worker's Prometheus metrics (docs/metrics.md has them all): what its probes hold at
// the moment of a scrape.
//
// Series per layer, of which a network has at most some hundreds: 22 on a worker, 3 on a server;
// besides some 200 on either. Labels are names from fixed lists and the plan's layers, nothing
// that grows while a job runs. The layers shown are those of the job in progress: they appear with
// an assignment and go when the job ends or the next one comes. What a counter had counted until
// then stays in Prometheus; the run's own record is metrics.jsonl.

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/pages/gpu_monitor.h"
#include "common/pages/metric_families.h"
#include "common/pages/metrics_server.h"
#include "common/plan/plan.h"
#include "common/probes/data_probe.h"
#include "common/probes/node_probe.h"
#include "common/probes/traffic.h"
#include "common/transport/paced_transport.h"
#include "common/wire/wire.h"

namespace poseidon {

/// Where a node's figures come from. All must outlive NodeMetrics.
struct NodeFigures {
  std::string role;  ///< "worker" or "server"
  const NodeProbe* probe = nullptr;
  const RefusalCounts* refusals = nullptr;
  std::vector<const PacedTraffic*> traffic;  ///< of its transports, added up
  std::filesystem::path data_dir;            ///< a server's; "": none
  std::shared_ptr<Security> security = Security::none();
  const GpuMonitor* gpu = nullptr;   ///< a worker's; null: it computes on none
  const LoopPulse* pulse = nullptr;  ///< that /healthz tells of; not null where served
};

/// The job that a node has a part in; nothing while there is none.
struct ShownJob {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const TrafficProbe> traffic;
  std::shared_ptr<const DataProbe> data;  ///< a worker's
};

/// All of one scrape but for the process's own figures.
MetricFamilies node_page(const NodeFigures& figures, const ShownJob& job);

/// Any thread.
class NodeMetrics {
 public:
  /// Serves on LISTEN, at /metrics and /healthz. Fails when the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<NodeMetrics>> serve(const std::string& listen,
                                                            NodeFigures figures);

  /// From now on the layers of this job are shown; one without a plan: none.
  void show(ShownJob job);
  /// HOST:PORT really listened on.
  const std::string& address() const { return server_->address(); }
  std::string url() const { return server_->url(); }

 private:
  explicit NodeMetrics(NodeFigures figures) : figures_(std::move(figures)) {}
  MetricFamilies page() const;

  const NodeFigures figures_;
  mutable std::mutex mutex_;
  ShownJob job_;                           ///< guarded by mutex_
  std::unique_ptr<MetricsServer> server_;  ///< last: stops reading all above first
};

}  // namespace poseidon
