#pragma once

// A server's or worker's Prometheus metrics (docs/metrics.md has them all): the values of its
// probes at the moment of a scrape.
//
// Called by: server/main.cc and worker/worker_main.cc; assignments change the layers shown. Calls:
// common/pages/metrics_server.h, common/probes.
//
// Series per layer, of which a network has at most some hundreds: 22 on a worker, 3 on a server;
// besides some 200 on either. Labels are names from fixed lists and the plan's layers, nothing that
// grows while a job runs. The layers are those of the current job: they appear with an assignment
// and disappear when the job ends or the next one begins. Prometheus keeps earlier values; the
// run's own record is metrics.jsonl.

#include <filesystem>
#include <memory>
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
#include "common/threads/mutex.h"
#include "common/transport/paced_transport.h"
#include "common/wire/wire.h"

namespace poseidon {

/// The sources of a node's figures. All must outlive NodeMetrics.
struct NodeFigures {
  std::string role;  ///< "worker" or "server"
  const NodeProbe* probe = nullptr;
  const RefusalCounts* refusals = nullptr;
  std::vector<const PacedTraffic*> traffic;  ///< of its transports, added up
  std::filesystem::path data_dir;            ///< a server's; "": none
  std::shared_ptr<Security> security = Security::none();
  const GpuMonitor* gpu = nullptr;   ///< a worker's; null: it does not use a GPU
  const LoopPulse* pulse = nullptr;  ///< for /healthz; must not be null when served
};

/// The node's current job; empty without one.
struct ShownJob {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const TrafficProbe> traffic;
  std::shared_ptr<const DataProbe> data;  ///< a worker's
};

/// All figures of a scrape except those of the process itself.
MetricFamilies node_page(const NodeFigures& figures, const ShownJob& job);

/// Any thread.
class NodeMetrics {
 public:
  /// Serves on LISTEN, at /metrics and /healthz. Fails when the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<NodeMetrics>> serve(const std::string& listen,
                                                            NodeFigures figures);

  /// Shows the layers of this job from now on; none for a job without a plan.
  void show(ShownJob job);
  /// HOST:PORT actually in use.
  const std::string& address() const { return server_->address(); }
  std::string url() const { return server_->url(); }

 private:
  explicit NodeMetrics(NodeFigures figures) : figures_(std::move(figures)) {}
  MetricFamilies page() const;

  const NodeFigures figures_;
  mutable Mutex mutex_;
  ShownJob job_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<MetricsServer> server_;  ///< last member: it stops reading the others first
};

}  // namespace poseidon
