#include "coordinator/metrics.h"

#include <exception>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/daemon.h"
#include "common/status_macros.h"
#include "prometheus/counter.h"
#include "prometheus/exposer.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

namespace poseidon {
namespace {

class PrometheusMetrics final : public CoordinatorMetrics {
 public:
  PrometheusMetrics()
      : registry_(std::make_shared<prometheus::Registry>()),
        iterations_(prometheus::BuildCounter()
                        .Name("poseidon_iterations_total")
                        .Help("Iterations that every worker has reported")
                        .Register(*registry_)
                        .Add({})),
        loss_(prometheus::BuildGauge()
                  .Name("poseidon_loss")
                  .Help("Mean training loss of the last finished iteration")
                  .Register(*registry_)
                  .Add({})),
        images_per_second_(prometheus::BuildGauge()
                               .Name("poseidon_images_per_second")
                               .Help("Training samples per second over the last seconds")
                               .Register(*registry_)
                               .Add({})),
        members_(prometheus::BuildGauge()
                     .Name("poseidon_members")
                     .Help("Nodes in the cluster")
                     .Register(*registry_)),
        refused_(prometheus::BuildCounter()
                     .Name("poseidon_refused_messages_total")
                     .Help("Messages that the coordinator refused, and why")
                     .Register(*registry_)) {
    members(NodeRole::kWorker, 0);
    members(NodeRole::kServer, 0);
  }

  /// Throws what the HTTP server throws.
  void expose(const HostPort& listen) {
    exposer_ = std::make_unique<prometheus::Exposer>(to_string(listen), 1);
    exposer_->RegisterCollectable(registry_);
    const std::vector<int> ports = exposer_->GetListeningPorts();
    address_ = to_string({listen.host, ports.empty() ? listen.port : ports.front()});
  }

  void iteration(double loss, double images_per_s) override {
    iterations_.Increment();
    loss_.Set(loss);
    images_per_second_.Set(images_per_s);
  }
  void members(NodeRole role, std::size_t count) override {
    members_.Add({{"role", role_name(role)}}).Set(static_cast<double>(count));
  }
  void refused(Refusal refusal) override {
    refused_.Add({{"reason", refusal_name(refusal)}}).Increment();
  }
  std::string address() const override { return address_; }

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  prometheus::Counter& iterations_;
  prometheus::Gauge& loss_;
  prometheus::Gauge& images_per_second_;
  prometheus::Family<prometheus::Gauge>& members_;
  prometheus::Family<prometheus::Counter>& refused_;
  std::string address_;
  std::unique_ptr<prometheus::Exposer> exposer_;  ///< last: stops reading the registry first
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorMetrics>> CoordinatorMetrics::create(
    const std::string& listen) {
  auto metrics = std::make_unique<PrometheusMetrics>();
  if (listen.empty()) return metrics;
  POSEIDON_ASSIGN_OR_RETURN(const HostPort address, parse_host_port(listen, PortZero::kAllowed));
  try {
    metrics->expose(address);
  } catch (const std::exception& error) {
    const absl::Status why = explain_listen_failure(address);
    return absl::Status(why.code(),
                        absl::StrCat("metrics: ", why.message(), " (", error.what(), ")"));
  }
  return metrics;
}

}  // namespace poseidon
