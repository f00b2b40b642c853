#pragma once

// `poseidon models`: lists the shipped networks, and describes one. Pure.
//
// Called by: cli/commands/commands.cc. Calls: models/net/net.h.

#include <string>

#include "models/net/net.h"
#include "nlohmann/json.hpp"

namespace poseidon {

/// {"name", "parameters", "multiply_adds", "layers": [...]}, and more.
nlohmann::json network_to_json(const NetSpec& net);

/// A table of its layers, and one of their types with sums.
std::string network_to_text(const NetSpec& net);

}  // namespace poseidon
