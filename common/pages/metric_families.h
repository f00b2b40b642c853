#pragma once

// Builds the answer to a scrape: Prometheus families and their values. Pure except
// add_process_figures.
//
// Called by: common/pages/node_metrics.h and the coordinator's metrics. Calls: nothing.

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "common/probes/time_histogram.h"
#include "common/security/security.h"

namespace poseidon {

using MetricFamilies = std::vector<prometheus::MetricFamily>;
using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

/// `help` is for people who use Prometheus: a sentence without a full stop.
prometheus::MetricFamily counter_family(std::string name, std::string help);
prometheus::MetricFamily gauge_family(std::string name, std::string help);
prometheus::MetricFamily histogram_family(std::string name, std::string help);

/// Adds a value to a family of counters or gauges.
void add_value(prometheus::MetricFamily& family, MetricLabels labels, double value);
/// Adds a histogram to a family.
void add_histogram(prometheus::MetricFamily& family, MetricLabels labels,
                   const TimeHistogram& values);
void add_histogram(prometheus::MetricFamily& family, MetricLabels labels,
                   const LayerTimeHistogram& values);

/// A gauge without labels.
prometheus::MetricFamily single_gauge(std::string name, std::string help, double value);

/// Adds the counts of refused peers and the expiry of our certificate.
void add_security_figures(const std::string& role, const Security& security,
                          MetricFamilies& families);

/// Adds the process figures of every daemon: version, role, CPU, memory, start time. Omits figures
/// that the system does not report.
void add_process_figures(const std::string& role, MetricFamilies& families);

}  // namespace poseidon
