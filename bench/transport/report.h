#pragma once

// Turns samples into figures: medians, ratios to raw, a table for people and JSON. Pure.

#include <string>
#include <vector>

#include "bench/transport/cluster.h"
#include "nlohmann/json.hpp"

namespace poseidon::bench {

/// One sample per round; the rounds of all variants of one shape belong together.
struct VariantSamples {
  std::string variant;
  std::vector<Sample> rounds;
};

/// Medians over rounds. GB are 10^9 bytes of floats, both directions, over all workers.
struct Row {
  std::string variant;
  Shape shape;
  double seconds_per_iteration = 0.0;
  double goodput_gb_s = 0.0;
  double worker_cpu_s_per_gb = 0.0;
  double server_cpu_s_per_gb = 0.0;
  double cpu_s_per_gb = 0.0;
  /// To raw in the same round; 0 when raw was not measured.
  double goodput_ratio = 0.0;
  double cpu_ratio = 0.0;
};

std::vector<Row> make_rows(const Shape& shape, Iteration iterations,
                           const std::vector<VariantSamples>& samples);

std::string table_head();
std::string table_line(const Row& row);
nlohmann::json to_json(const Row& row);

/// CPU model, cores, kernel and load of this machine: what figures without them do not mean.
nlohmann::json describe_machine();

}  // namespace poseidon::bench
