#pragma once

// Finds the schemes with the shortest predicted iteration. Pure and deterministic.
//
// Called by: time_rule.h, which explains the result. Calls: iteration_model.h, which predicts one
// choice.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/plan/plan.h"
#include "coordinator/planning/cost/iteration_model.h"

namespace poseidon {

struct SearchOptions {
  /// Up to this many free layers every combination is simulated, within work_limit.
  std::size_t exact_limit = 10;
  /// Limit of simulated layers (and stripes) in total, which bounds the time; about 0.3 us each.
  std::int64_t work_limit = 200'000;
};

struct SearchResult {
  std::vector<Scheme> schemes;  ///< by layer
  double iteration_s = 0.0;
  /// By layer: the iteration with only this layer's scheme changed; NaN where that is not possible
  /// or was not simulated.
  std::vector<double> flipped_s;
  bool exact = false;  ///< every combination was simulated
  std::int64_t plays = 0;
};

/// `starts`: choices to begin with, at least one; they agree on every layer that is not `free`. The
/// result is never slower than the best of them. Equally fast choices: the one that keeps the
/// busiest link less busy. Beyond the exact limit: layers are moved to SFB in the order of what
/// they relieve the network of per second of rebuilding, then single layers and pairs are flipped
/// while it helps.
SearchResult search_schemes(const IterationModel& model,
                            const std::vector<std::vector<Scheme>>& starts,
                            const std::vector<std::size_t>& free,
                            const SearchOptions& options = {});

}  // namespace poseidon
