#pragma once

// Reads a daemon's options from JSON files: --config FILE, which systemd units and containers use.
//
// Called by: common/daemon/daemon.h. Calls: common/files/json_fields.h.
//
// The keys are the options without their dashes:
//
//   {"coordinator": "10.0.0.1:4700", "listen": "10.0.0.2:4701", "no-shared-memory": true}
//
// Precedence: the command line, the last --config file, the files before it, the defaults.

#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace poseidon {

/// Adds --config, which may be given several times. Parsing fails, with a message that names file
/// and key, for a missing file, a file that is not a JSON object, an unknown key (the message
/// suggests the nearest) or a value that is not a string, number, true, false or a list of them.
/// Call it after all other options are declared.
void add_config_option(CLI::App& app);

/// " (of FILE)" when `message` names an option, such as "--lease-ms", whose value came from a
/// config file; otherwise "". Call it after parsing, even failed parsing.
std::string config_note(const CLI::App& app, std::string_view message);

}  // namespace poseidon
