#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/http_server.h"
#include "common/metric_families.h"

namespace poseidon {

/// Serves what one function puts together on http://ADDRESS/metrics. Costs nothing but when it is
/// scraped.
class MetricsServer {
 public:
  /// Called on the server's threads, up to HttpLimits::threads at a time.
  using Page = std::function<MetricFamilies()>;

  /// `listen`: HOST:PORT, port 0 for any. ALREADY_EXISTS when the port is taken, INVALID_ARGUMENT
  /// for what is no address; the message names it.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> start(const std::string& listen, Page page,
                                                              const HttpLimits& limits = {});
  /// From its end on, `page` is called no more. Waits for scrapes under way.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  /// HOST:PORT really listened on.
  const std::string& address() const;

 private:
  class Impl;
  explicit MetricsServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace poseidon
