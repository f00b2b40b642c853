#pragma once

// What of a command line nobody knows, said by its name and before anything else: CLI11 first
// misses what is required, which may be what was misspelt. Pure.

#include <span>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace poseidon {

/// `words` as main()'s argv without the program's name. INVALID_ARGUMENT names the first option or
/// subcommand that `app` has not, with the nearest one that it has. What an option's value may be
/// is CLI11's to say.
absl::Status check_words(const CLI::App& app, std::span<const char* const> words);

}  // namespace poseidon
