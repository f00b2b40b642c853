#pragma once

// Repetition in network files, written once: `blocks` (parametrised lists of layers), `repeat`
// (numbered lists), `defaults` (keys by layer type) and `parameters` (of the whole file) become a
// plain list of layers. Pure. Before: the JSON of a network file (models/README.md has the format).
// After: parse_network.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace poseidon {

/// Bounds of what a small file may grow into, beside kMaxLayers.
inline constexpr std::size_t kMaxBlocks = 256;
inline constexpr std::size_t kMaxBlockParameters = 64;
inline constexpr std::size_t kMaxBlockDepth = 8;  ///< blocks inside blocks
inline constexpr std::size_t kMaxExpandedBytes = std::size_t{64} << 20;

/// `file` with `layers` as a plain list and without the other three. What has nothing to do
/// with repetition stays as it is, right or wrong: parse_network judges it. Errors start with
/// `where` ("network 'x'") and name the block, its parameter or the layer.
absl::StatusOr<nlohmann::json> expand_network(const nlohmann::json& file, const std::string& where);

}  // namespace poseidon
