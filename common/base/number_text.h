#pragma once

// Prints a number as people write it, for messages. Pure.
//
// Called by: common/tensor/optimizer.h and common/tensor/schedule.h. Calls: nothing.

#include <array>
#include <charconv>
#include <string>

namespace poseidon {

/// The shortest text that parses to the same number: 0.99999999, 1e+39.
inline std::string number_text(double value) {
  std::array<char, 32> text;
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

}  // namespace poseidon
