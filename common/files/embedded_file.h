#pragma once

// How files of the source tree are found that a program has in itself: they live as long as it.

#include <span>
#include <string_view>

namespace poseidon {

/// A file of the source tree that was compiled in (cmake/PoseidonEmbed.cmake).
struct EmbeddedFile {
  std::string_view name;  ///< without its folder
  std::string_view text;
};

}  // namespace poseidon
