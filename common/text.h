#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace poseidon {

/// Debian builds Abseil for C++14, where absl::string_view is a type of its own that does not know
/// std::string_view.
inline absl::string_view to_absl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view from_absl(absl::string_view text) { return {text.data(), text.size()}; }

/// The first `max` bytes of `text`, or up to 3 fewer: no character of UTF-8 is cut through, so that
/// what protobuf took as a string it takes again.
inline std::string_view utf8_prefix(std::string_view text, std::size_t max) {
  if (text.size() <= max) return text;
  std::size_t end = max;
  while (end > 0 && max - end < 3 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

namespace text_internal {
template <typename T>
const T& absl_argument(const T& value) {
  return value;
}
inline absl::string_view absl_argument(const std::string_view& value) { return to_absl(value); }
}  // namespace text_internal

/// absl::StrCat that also takes std::string_view.
template <typename... Parts>
std::string str_cat(const Parts&... parts) {
  return absl::StrCat(text_internal::absl_argument(parts)...);
}

}  // namespace poseidon
