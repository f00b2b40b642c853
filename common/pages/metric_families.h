#pragma once

// What a scrape answers, put together: Prometheus families and their values. Pure but for
// add_process_figures.

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "common/probes/time_histogram.h"
#include "common/security/security.h"

namespace poseidon {

using MetricFamilies = std::vector<prometheus::MetricFamily>;
using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

/// `help` is what people read in Prometheus: a sentence without a full stop.
prometheus::MetricFamily counter_family(std::string name, std::string help);
prometheus::MetricFamily gauge_family(std::string name, std::string help);
prometheus::MetricFamily histogram_family(std::string name, std::string help);

/// To a family of counters or gauges.
void add_value(prometheus::MetricFamily& family, MetricLabels labels, double value);
/// To a family of histograms.
void add_histogram(prometheus::MetricFamily& family, MetricLabels labels,
                   const TimeHistogram& values);
void add_histogram(prometheus::MetricFamily& family, MetricLabels labels,
                   const LayerTimeHistogram& values);

/// A gauge without labels.
prometheus::MetricFamily single_gauge(std::string name, std::string help, double value);

/// Peers that were turned away, and when our certificate expires.
void add_security_figures(const std::string& role, const Security& security,
                          MetricFamilies& families);

/// What every daemon tells of its process: version and role, CPU, memory, start. What the system
/// does not tell is left out.
void add_process_figures(const std::string& role, MetricFamilies& families);

}  // namespace poseidon
