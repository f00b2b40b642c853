#pragma once

// Derives a network from another one, with other parameters, another input or more layers. Pure.
//
// Called by: resolve_network (models/net/net.h), which then calls expand_network. Calls: nothing.

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace poseidon {

inline constexpr int kMaxDerivations = 8;  ///< networks that derive from networks

/// Whether the file derives from another: {"network": base, ...}.
bool is_derived_network(const nlohmann::json& file);

/// `base` with the changes of `derived` (models/README.md: "Networks from networks"), as a
/// self-contained file. INVALID_ARGUMENT names the key, parameter or block that does not fit.
absl::StatusOr<nlohmann::json> derive_network(const nlohmann::json& base,
                                              const nlohmann::json& derived);

}  // namespace poseidon
