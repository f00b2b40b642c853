#pragma once

// Expands repetition in network files: `blocks` (parametrised lists of layers), `repeat` (numbered
// lists), `defaults` (keys by layer type) and `parameters` (of the whole file) become a plain list
// of layers. models/README.md has the format. Pure.
//
// Called by: resolve_network (models/net/net.h), which then calls parse_network. Calls: nothing.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace poseidon {

/// Limits on the expansion of a small file, beside kMaxLayers.
inline constexpr std::size_t kMaxBlocks = 256;
inline constexpr std::size_t kMaxBlockParameters = 64;
inline constexpr std::size_t kMaxBlockDepth = 8;  ///< blocks inside blocks
inline constexpr std::size_t kMaxExpandedBytes = std::size_t{64} << 20;

/// `file` with `layers` as a plain list and without the other three. Copies all else unchanged;
/// parse_network checks it. Errors start with `where` ("network 'x'") and name the block, its
/// parameter or the layer.
absl::StatusOr<nlohmann::json> expand_network(const nlohmann::json& file, const std::string& where);

}  // namespace poseidon
