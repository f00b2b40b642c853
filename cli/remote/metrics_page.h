#pragma once

// What a daemon's /metrics answered, in Prometheus' text format (version 0.0.4): its numbers by
// name and labels. Pure. Before: cli/remote/metrics_client.h fetched it. After:
// cli/doctor/doctor_metrics.h.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace poseidon {

class MetricsPage {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  /// Keeps the series of these names; of a histogram they are NAME_sum and NAME_count.
  /// INVALID_ARGUMENT says which line is no metric.
  static absl::StatusOr<MetricsPage> parse(std::string_view text,
                                           absl::Span<const std::string_view> names);

  /// The sum over all series of the name that have these labels, whatever others they have; nothing
  /// where there is none, or what comes out is no finite number.
  std::optional<double> sum(std::string_view name, const Labels& labels = {}) const;
  /// The sums by the values of one label; series without it, and what is not finite, are left out.
  std::map<std::string, double> by(std::string_view name, std::string_view label) const;

 private:
  struct Series {
    Labels labels;
    double value = 0.0;
  };
  std::map<std::string, std::vector<Series>, std::less<>> series_;
};

}  // namespace poseidon
