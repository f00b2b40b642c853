#pragma once

// Reads one initialiser of a network file. models/README.md lists them.
//
// Called by: models/net/net_parse.cc. Calls: common/files/json_fields.h.

#include <string_view>

#include "absl/status/status.h"
#include "models/net/net.h"
#include "nlohmann/json_fwd.hpp"

namespace poseidon {

/// `source` and `path` as in JsonFields. Leaves `initialiser` unchanged on error.
absl::Status parse_initialiser(const nlohmann::json& json, std::string_view source,
                               std::string_view path, Initialiser& initialiser);

}  // namespace poseidon
