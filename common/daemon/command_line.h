#pragma once

// Reports unknown options and subcommands before CLI11 does. CLI11 would first report a missing
// required option, which may be the misspelt one. Pure.
//
// Called by: the main() of every program. Calls: common/base/nearest.h.

#include <span>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace poseidon {

/// `words` as main()'s argv without the program's name. INVALID_ARGUMENT names the first option or
/// subcommand that `app` does not have, and the nearest that it has. CLI11 checks the values of
/// options.
absl::Status check_words(const CLI::App& app, std::span<const char* const> words);

}  // namespace poseidon
