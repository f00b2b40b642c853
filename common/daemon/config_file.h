#pragma once

// Options of a daemon from JSON files instead of the command line: --config FILE, which systemd
// units and containers use. The keys are the options without their dashes:
//
//   {"coordinator": "10.0.0.1:4700", "listen": "10.0.0.2:4701", "no-shared-memory": true}
//
// The command line goes first, then the last file that was named, then those before it, then the
// defaults.

#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace poseidon {

/// Adds --config, which may be given several times. A file that is missing or no JSON object, a key
/// that is no option (the nearest one is named) or a value that is no string, number, true, false
/// or list of them fails the parsing with a message that names file and key. Call it after all
/// other options are declared.
void add_config_option(CLI::App& app);

/// " (of FILE)" where `message` names an option, as "--lease-ms", whose value such a file gave, or
/// "". After the parsing, be it that it failed.
std::string config_note(const CLI::App& app, std::string_view message);

}  // namespace poseidon
