#include "common/pages/metric_families.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "common/base/process_load.h"
#include "common/daemon/daemon.h"

namespace poseidon {
namespace {

/// Fields of /proc/self/stat (man 5 proc), counted from what follows the program's name.
constexpr int kStartTimeField = 19;
constexpr int kResidentPagesField = 21;

struct ProcessFigures {
  double resident_bytes = 0.0;
  double since_boot_s = 0.0;  ///< when it started
};

bool read_process(ProcessFigures& figures) {
  std::ifstream file("/proc/self/stat");
  std::string text;
  if (!std::getline(file, text)) return false;
  std::istringstream fields(text.substr(text.rfind(')') + 1));  // a program's name may hold spaces
  std::string field;
  for (int i = 0; i <= kResidentPagesField; ++i) {
    if (!(fields >> field)) return false;
    if (i == kStartTimeField) {
      figures.since_boot_s = std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
    }
  }
  figures.resident_bytes = std::stod(field) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return true;
}

double clock_s(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

prometheus::MetricFamily counter_family(std::string name, std::string help) {
  return {std::move(name), std::move(help), prometheus::MetricType::Counter, {}};
}

prometheus::MetricFamily gauge_family(std::string name, std::string help) {
  return {std::move(name), std::move(help), prometheus::MetricType::Gauge, {}};
}

prometheus::MetricFamily histogram_family(std::string name, std::string help) {
  return {std::move(name), std::move(help), prometheus::MetricType::Histogram, {}};
}

void add_value(prometheus::MetricFamily& family, MetricLabels labels, double value) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  if (family.type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  family.metric.push_back(std::move(metric));
}

namespace {

template <const auto& kBounds>
void add_buckets(prometheus::MetricFamily& family, MetricLabels labels,
                 const BasicTimeHistogram<kBounds>& values) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < values.kBuckets; ++i) {
    count += values.in(i);
    const bool last = i + 1 == values.kBuckets;
    metric.histogram.bucket.push_back(
        {count, last ? std::numeric_limits<double>::infinity() : kBounds[i]});
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = values.seconds();
  family.metric.push_back(std::move(metric));
}

}  // namespace

void add_histogram(prometheus::MetricFamily& family, MetricLabels labels,
                   const TimeHistogram& values) {
  add_buckets(family, std::move(labels), values);
}
void add_histogram(prometheus::MetricFamily& family, MetricLabels labels,
                   const LayerTimeHistogram& values) {
  add_buckets(family, std::move(labels), values);
}

prometheus::MetricFamily single_gauge(std::string name, std::string help, double value) {
  prometheus::MetricFamily family = gauge_family(std::move(name), std::move(help));
  add_value(family, {}, value);
  return family;
}

void add_security_figures(const std::string& role, const Security& security,
                          MetricFamilies& families) {
  auto refused = counter_family("poseidon_refused_connections_total",
                                "Connections and calls that were refused, by reason");
  for (std::size_t r = 0; r < kPeerRefusals; ++r) {
    const auto refusal = static_cast<PeerRefusal>(r);
    add_value(refused, {{"reason", peer_refusal_name(refusal)}, {"role", role}},
              static_cast<double>(security.refused(refusal)));
  }
  families.push_back(std::move(refused));
  if (const auto expires = security.expires_unix_s()) {
    families.push_back(single_gauge("poseidon_certificate_expiry_time_seconds",
                                    "Time when this process's certificate expires, since 1970",
                                    static_cast<double>(*expires)));
  }
}

void add_process_figures(const std::string& role, MetricFamilies& families) {
  auto build = gauge_family("poseidon_build_info", "1, with the version of this program");
  add_value(build, {{"version", software_version()}, {"role", role}}, 1.0);
  families.push_back(std::move(build));

  auto cpu = counter_family("poseidon_process_cpu_seconds_total",
                            "CPU time of this process, in user and system mode");
  add_value(cpu, {}, process_cpu_seconds());
  families.push_back(std::move(cpu));
  ProcessFigures figures;
  if (!read_process(figures)) return;
  // Computed once: a clock that is set meanwhile would look like a restart of the process.
  static const double started_s =
      clock_s(CLOCK_REALTIME) - clock_s(CLOCK_BOOTTIME) + figures.since_boot_s;
  families.push_back(single_gauge("poseidon_process_resident_memory_bytes",
                                  "Memory of this process that is in RAM, shared memory included",
                                  figures.resident_bytes));
  families.push_back(single_gauge("poseidon_process_start_time_seconds",
                                  "Time when this process started, since 1970", started_s));
}

}  // namespace poseidon
