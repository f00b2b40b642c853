#pragma once

#include <span>
#include <string_view>

namespace poseidon {

struct ShippedModel {
  std::string_view name;
  std::string_view text;
};

/// Defined in shipped_data.cc, which embed.cmake writes at build time.
std::span<const ShippedModel> shipped_models();

}  // namespace poseidon
