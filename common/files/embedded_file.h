#pragma once

// Finds source files that are compiled into the program. They live as long as the program.
//
// Called by: models/shipped_data.h and coordinator/watch/status_page.h. Calls: nothing.

#include <span>
#include <string_view>

namespace poseidon {

/// A file of the source tree that was compiled in (cmake/PoseidonEmbed.cmake).
struct EmbeddedFile {
  std::string_view name;  ///< without its folder
  std::string_view text;
};

}  // namespace poseidon
