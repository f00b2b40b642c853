#pragma once

// A daemon's page for Prometheus, /metrics, and for whoever asks whether it is well, /healthz.
//
// Before: common/pages/node_metrics.h or coordinator/service.cc puts the figures together, when
// they are asked for. After: common/pages/http_server.h answers; it says who may read.
//
// Threads: the HTTP server's own. None of them touches the data path, and the page reads atomics or
// a copy.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/loop_pulse.h"
#include "common/pages/http_server.h"
#include "common/pages/metric_families.h"

namespace poseidon {

/// Serves what one function puts together at /metrics, as Prometheus' text, compressed for those
/// who take gzip; and at /healthz whether the daemon's loop still turns: 200 "ok", or 503 and which
/// has been silent for how long. Costs nothing but when it is asked.
class MetricsServer {
 public:
  /// Called on the server's threads, up to HttpLimits::threads at a time.
  using Page = std::function<MetricFamilies()>;

  /// `listen`: HOST:PORT, port 0 for any. ALREADY_EXISTS when the port is taken, INVALID_ARGUMENT
  /// for what is no address; the message names it. Warns when others can read it without TLS.
  /// `pulse` must outlive the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> start(const std::string& listen,
                                                              std::shared_ptr<Security> security,
                                                              Page page, const LoopPulse* pulse,
                                                              const HttpLimits& limits = {});

  /// HOST:PORT really listened on.
  const std::string& address() const { return server_->address(); }
  /// "https://10.0.0.1:9460/metrics"
  std::string url() const { return server_->url() + "/metrics"; }

 private:
  explicit MetricsServer(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}
  const std::unique_ptr<HttpServer> server_;  ///< its end waits for scrapes under way
};

/// One gzip member. Pure.
std::string gzipped(const std::string& text);

}  // namespace poseidon
