#pragma once

// A network that is another one with other parameters, another input or more layers. Pure. Before:
// resolve_network has read both files. After: expand_network.

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace poseidon {

inline constexpr int kMaxDerivations = 8;  ///< networks that derive from networks

/// Whether the file says {"network": base, ...} instead of all itself.
bool is_derived_network(const nlohmann::json& file);

/// `base` with what `derived` (models/README.md: "Networks from networks") says otherwise: a file
/// that stands for itself. INVALID_ARGUMENT names the key, parameter or block that does not fit.
absl::StatusOr<nlohmann::json> derive_network(const nlohmann::json& base,
                                              const nlohmann::json& derived);

}  // namespace poseidon
