#pragma once

// Reports unknown options and subcommands before CLI11 does. CLI11 would first report a missing
// required option, which may be the misspelt one. Pure.
//
// Called by: the main() of every program. Calls: common/base/nearest.h.

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace poseidon {

/// `words` as main()'s argv without the program's name. INVALID_ARGUMENT names the first option or
/// subcommand that `app` does not have, and the nearest that it has. CLI11 checks the values of
/// options.
absl::Status check_words(const CLI::App& app, std::span<const char* const> words);

/// Adds --config, which may be given several times. Parsing fails, with a message that names file
/// and key, for a missing file, a file that is not a JSON object, an unknown key (the message
/// suggests the nearest) or a value that is not a string, number, true, false or a list of them.
/// Call it after all other options are declared.
void add_config_option(CLI::App& app);

/// " (of FILE)" when `message` names an option, such as "--lease-ms", whose value came from a
/// config file; otherwise "". Call it after parsing, even failed parsing.
std::string config_note(const CLI::App& app, std::string_view message);

}  // namespace poseidon
