#include "common/metrics_server.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/daemon.h"
#include "common/http_server.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

class PageCollectable final : public prometheus::Collectable {
 public:
  explicit PageCollectable(MetricsServer::Page page) : page_(std::move(page)) {}
  std::vector<prometheus::MetricFamily> Collect() const override { return page_(); }

 private:
  const MetricsServer::Page page_;
};

}  // namespace

class MetricsServer::Impl {
 public:
  explicit Impl(Page page) : page_(std::make_shared<PageCollectable>(std::move(page))) {}
  ~Impl() {
    if (exposer_ != nullptr) close_by_knocking(place_, [this] { exposer_.reset(); });
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Throws what the HTTP server throws.
  void open(const HostPort& listen, const HttpLimits& limits) {
    exposer_ = std::make_unique<prometheus::Exposer>(civetweb_options(listen, limits));
    const std::vector<int> ports = exposer_->GetListeningPorts();
    place_ = {listen.host, ports.empty() ? listen.port : ports.front()};
    address_ = to_string(place_);
    exposer_->RegisterCollectable(page_);
  }

  const std::string& address() const { return address_; }

 private:
  const std::shared_ptr<PageCollectable> page_;  ///< shared: the HTTP server holds it weakly
  HostPort place_;
  std::string address_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::start(const std::string& listen,
                                                                    Page page,
                                                                    const HttpLimits& limits) {
  POSEIDON_ASSIGN_OR_RETURN(const HostPort address, parse_page_address(listen));
  if (!is_loopback_host(address.host)) {
    spdlog::warn(
        "whoever reaches {} may read the metrics: they are served without TLS, to everybody",
        listen);
  }
  auto impl = std::make_unique<Impl>(std::move(page));
  try {  // the library's error channel ends here
    impl->open(address, limits);
  } catch (const std::exception& error) {
    const absl::Status why = explain_listen_failure(address);
    return absl::Status(why.code(),
                        absl::StrCat("--metrics-listen: ", why.message(), " (", error.what(), ")"));
  }
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

const std::string& MetricsServer::address() const { return impl_->address(); }

}  // namespace poseidon
