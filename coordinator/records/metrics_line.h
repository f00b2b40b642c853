#pragma once

// One line of metrics.jsonl, read back. Pure. Before: job_run_training.cc has them written. After:
// run_directory.cc (how far a run is) and loss_curve.h.

#include <optional>
#include <string_view>

#include "common/base/ids.h"

namespace poseidon {

struct MetricsLine {
  Iteration iteration = 0;     ///< of a test: made before it
  std::optional<double> loss;  ///< of an iteration; nothing: the line is a test's
  double test_loss = 0.0;
  double test_accuracy = 0.0;
};

/// Nothing for a line that is torn or none of ours. Without the line end.
std::optional<MetricsLine> parse_metrics_line(std::string_view line);

}  // namespace poseidon
