#pragma once

// For tests: a grid of awkward layers (batch 1, odd sizes, padding, strides, groups, windows that
// overhang, rows that fill no vector).

#include <cstdint>
#include <string>
#include <vector>

#include "models/net/net.h"
#include "nlohmann/json.hpp"

namespace poseidon::testing {

/// One layer, its options as in a network file, on one input.
struct LayerCase {
  nlohmann::json layer;
  Shape shape;
  std::int64_t batch = 1;
};
struct LayerCases {
  std::string name;  ///< as a test's: "Convolution"
  std::vector<LayerCase> cases;
};
/// Every layer type, by group.
const std::vector<LayerCases>& layer_grid();

}  // namespace poseidon::testing
