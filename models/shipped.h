#pragma once

// The networks of this folder, compiled into the programs, so that an installation needs no data
// folder.
//
// Called by: models/net/net.h and `poseidon models`. Calls: models/shipped_data.h.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace poseidon {

/// Names of the shipped networks (the file names without .json), sorted.
std::vector<std::string> shipped_model_names();

/// The network file's text, valid for the life of the program; nullopt for an unknown name.
std::optional<std::string_view> shipped_model(std::string_view name);

}  // namespace poseidon
