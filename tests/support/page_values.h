#pragma once

#include <optional>
#include <string>

#include "common/pages/metric_families.h"

namespace poseidon::testing_support {

/// The one value of a counter or gauge with exactly these labels.
inline std::optional<double> value_of(const MetricFamilies& page, const std::string& name,
                                      const MetricLabels& labels = {}) {
  for (const prometheus::MetricFamily& family : page) {
    if (family.name != name) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      if (metric.label != labels) continue;
      return family.type == prometheus::MetricType::Counter ? metric.counter.value
                                                            : metric.gauge.value;
    }
  }
  return std::nullopt;
}

inline const prometheus::ClientMetric::Histogram* histogram_of(const MetricFamilies& page,
                                                               const std::string& name,
                                                               const MetricLabels& labels) {
  for (const prometheus::MetricFamily& family : page) {
    if (family.name != name) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      if (metric.label == labels) return &metric.histogram;
    }
  }
  return nullptr;
}

}  // namespace poseidon::testing_support
