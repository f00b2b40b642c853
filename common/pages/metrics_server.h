#pragma once

// A daemon's HTTP pages: /metrics for Prometheus and /healthz for health checks.
//
// Called by: common/pages/node_metrics.h and coordinator/service.cc, which provide the figures on
// request. Calls: common/pages/http_server.h, which also checks who may read.
//
// Threads: the HTTP server's own. None of them touches the data path, and the page reads atomics or
// a copy.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/pages/http_server.h"
#include "common/pages/metric_families.h"
#include "common/threads/loop_pulse.h"

namespace poseidon {

/// Serves one function's figures at /metrics, as Prometheus text, gzip-compressed for clients that
/// accept it. Serves at /healthz whether the daemon's loop still turns: 200 "ok", or 503 with the
/// silent loop and for how long. Costs nothing between requests.
class MetricsServer {
 public:
  /// Called on the server's threads, up to HttpLimits::threads at a time.
  using Page = std::function<MetricFamilies()>;

  /// `listen`: HOST:PORT, port 0 for any. ALREADY_EXISTS when the port is taken, INVALID_ARGUMENT,
  /// naming the text, for an invalid address. Logs a warning when other machines can read it
  /// without TLS. `pulse` must outlive the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> start(const std::string& listen,
                                                              std::shared_ptr<Security> security,
                                                              Page page, const LoopPulse* pulse,
                                                              const HttpLimits& limits = {});

  /// HOST:PORT actually in use.
  const std::string& address() const { return server_->address(); }
  /// "https://10.0.0.1:9460/metrics"
  std::string url() const { return server_->url() + "/metrics"; }

 private:
  explicit MetricsServer(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}
  const std::unique_ptr<HttpServer> server_;  ///< its destructor waits for scrapes in progress
};

/// One gzip member. Pure.
std::string gzipped(const std::string& text);

}  // namespace poseidon
