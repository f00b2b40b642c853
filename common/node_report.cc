#include "common/node_report.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <exception>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace poseidon {

void fill_heartbeat_totals(const TrafficProbe* traffic, const DataProbe* data,
                           const RefusalCounts& refusals, v1::Heartbeat& heartbeat) {
  if (data != nullptr) {
    heartbeat.set_data_stall_seconds(data->stall_seconds());
    heartbeat.set_corrupt_samples(data->corrupt_samples());
  }
  for (std::uint32_t i = 0; traffic != nullptr && i < traffic->layers(); ++i) {
    v1::LayerTraffic& layer = *heartbeat.add_layers();
    layer.set_layer(i);
    layer.set_sent_bytes(traffic->sent_bytes(LayerIndex(i)));
    layer.set_received_bytes(traffic->received_bytes(LayerIndex(i)));
    layer.set_stall_seconds(traffic->stall_seconds(LayerIndex(i)));
    layer.set_forward_seconds(traffic->forward_seconds(LayerIndex(i)));
    layer.set_backward_seconds(traffic->backward_seconds(LayerIndex(i)));
    layer.set_passes(traffic->passes(LayerIndex(i)));
    layer.set_sync_seconds(traffic->sync_seconds(LayerIndex(i)));
    layer.set_syncs(traffic->syncs(LayerIndex(i)));
  }
  for (int r = 1; r < static_cast<int>(DataRefusal::kCount); ++r) {
    const auto reason = static_cast<DataRefusal>(r);
    if (refusals.of(reason) == 0) continue;
    v1::RefusedCount& count = *heartbeat.add_refused();
    count.set_reason(data_refusal_name(reason));
    count.set_count(refusals.of(reason));
  }
}

namespace {

prometheus::MetricFamily counter(const char* name, const char* help) {
  return {name, help, prometheus::MetricType::Counter, {}};
}

void add_value(prometheus::MetricFamily& family,
               std::vector<prometheus::ClientMetric::Label> labels, double value) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  metric.counter.value = value;
  family.metric.push_back(std::move(metric));
}

prometheus::ClientMetric sync_histogram(const TrafficProbe& traffic, LayerIndex layer,
                                        std::vector<prometheus::ClientMetric::Label> labels) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i <= TrafficProbe::kSyncBoundsS.size(); ++i) {
    count += traffic.syncs_in(layer, i);
    const bool last = i == TrafficProbe::kSyncBoundsS.size();
    metric.histogram.bucket.push_back(
        {count, last ? std::numeric_limits<double>::infinity() : TrafficProbe::kSyncBoundsS[i]});
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = traffic.sync_seconds(layer);
  return metric;
}

}  // namespace

class NodeMetrics::Impl final : public prometheus::Collectable {
 public:
  Impl(std::string role, const RefusalCounts* refusals)
      : role_(std::move(role)), refusals_(refusals) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    auto sent = counter("poseidon_layer_sent_bytes_total", "Payload bytes sent for the layer");
    auto received =
        counter("poseidon_layer_received_bytes_total", "Payload bytes received for the layer");
    auto stall = counter("poseidon_layer_stall_seconds_total",
                         "How long forward stood still until the layer's parameters came");
    prometheus::MetricFamily sync = {
        "poseidon_layer_sync_seconds",
        "From a layer's gradient being ready to its new parameters being there",
        prometheus::MetricType::Histogram,
        {}};
    auto refused =
        counter("poseidon_refused_messages_total", "Data messages that were not used, by reason");
    const std::lock_guard lock(mutex_);
    for (std::uint32_t i = 0; traffic_ != nullptr && i < traffic_->layers(); ++i) {
      const LayerIndex layer(i);
      const PlanLayer& plan = plan_->layers[i];
      const std::vector<prometheus::ClientMetric::Label> labels = {
          {"layer", plan.name}, {"scheme", std::string(scheme_name(plan.scheme))}, {"role", role_}};
      add_value(sent, labels, static_cast<double>(traffic_->sent_bytes(layer)));
      add_value(received, labels, static_cast<double>(traffic_->received_bytes(layer)));
      add_value(stall, {{"layer", plan.name}}, traffic_->stall_seconds(layer));
      sync.metric.push_back(sync_histogram(*traffic_, layer, labels));
    }
    for (int r = 1; r < static_cast<int>(DataRefusal::kCount); ++r) {
      const auto reason = static_cast<DataRefusal>(r);
      add_value(refused, {{"reason", data_refusal_name(reason)}, {"role", role_}},
                static_cast<double>(refusals_->of(reason)));
    }
    std::vector<prometheus::MetricFamily> families = {std::move(sent), std::move(received),
                                                      std::move(refused)};
    if (role_ == "worker") {
      families.push_back(std::move(stall));
      families.push_back(std::move(sync));
    }
    if (data_ != nullptr) {
      auto data_stall =
          counter("poseidon_data_stall_seconds_total",
                  "How long the engine stood still because the next batch was not read yet");
      auto corrupt = counter("poseidon_data_corrupt_samples_total",
                             "Samples that cannot be read; others stand in for them");
      add_value(data_stall, {}, data_->stall_seconds());
      add_value(corrupt, {}, static_cast<double>(data_->corrupt_samples()));
      families.push_back(std::move(data_stall));
      families.push_back(std::move(corrupt));
    }
    return families;
  }

  const std::string role_;
  const RefusalCounts* const refusals_;
  std::string address_;
  std::unique_ptr<prometheus::Exposer> exposer_;

  mutable std::mutex mutex_;  ///< guards all below
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const TrafficProbe> traffic_;
  std::shared_ptr<const DataProbe> data_;
};

NodeMetrics::NodeMetrics(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
NodeMetrics::~NodeMetrics() { impl_->exposer_.reset(); }  // no scrape while the rest goes

absl::StatusOr<std::unique_ptr<NodeMetrics>> NodeMetrics::serve(const std::string& address,
                                                                std::string role,
                                                                const RefusalCounts* refusals) {
  auto shared = std::make_shared<Impl>(std::move(role), refusals);
  auto metrics = std::unique_ptr<NodeMetrics>(new NodeMetrics(shared));
  Impl& impl = *shared;
  try {  // the library's error channel ends here
    impl.exposer_ = std::make_unique<prometheus::Exposer>(address, /*num_threads=*/1);
    const std::vector<int> ports = impl.exposer_->GetListeningPorts();
    impl.address_ =
        absl::StrCat(address.substr(0, address.rfind(':')), ":", ports.empty() ? 0 : ports.front());
    impl.exposer_->RegisterCollectable(shared);
  } catch (const std::exception& error) {
    return absl::AlreadyExistsError(absl::StrCat("--metrics-listen ", address,
                                                 ": cannot listen there (", error.what(),
                                                 "): is the port in use?"));
  }
  return metrics;
}

void NodeMetrics::show(std::shared_ptr<const Plan> plan,
                       std::shared_ptr<const TrafficProbe> traffic,
                       std::shared_ptr<const DataProbe> data) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->plan_ = std::move(plan);
  impl_->traffic_ = std::move(traffic);
  impl_->data_ = std::move(data);
}

const std::string& NodeMetrics::address() const { return impl_->address_; }

}  // namespace poseidon
