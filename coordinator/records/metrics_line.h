#pragma once

// Parses one line of metrics.jsonl. Pure.
//
// Called by: run_directory.cc, to find a run's progress, and loss_curve.h. Calls: nothing.
// coordinator/job/training.cc has the lines written.

#include <optional>
#include <string_view>

#include "common/base/ids.h"

namespace poseidon {

struct MetricsLine {
  Iteration iteration = 0;     ///< of a test: made before it
  std::optional<double> loss;  ///< of an iteration, NaN where unknown; nullopt: the line is a test
  double test_loss = 0.0;
  double test_accuracy = 0.0;
};

/// nullopt for a torn or foreign line. `line` has no line end.
std::optional<MetricsLine> parse_metrics_line(std::string_view line);

}  // namespace poseidon
