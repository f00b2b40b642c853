#pragma once

// Makes foreign text safe for logs, messages and file names, and converts between Abseil's and the
// standard library's string views. Pure.
//
// Called by: every wing. Calls: nothing.

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace poseidon {

/// Debian builds Abseil for C++14, where absl::string_view is a type of its own that does not know
/// std::string_view.
inline absl::string_view to_absl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view from_absl(absl::string_view text) { return {text.data(), text.size()}; }

/// True for characters that must not appear in a line of a log or of a header.
inline bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// The first `max` bytes of `text`, or up to 3 fewer: never cuts a UTF-8 character, so that
/// protobuf accepts the prefix of any string it accepted.
inline std::string_view utf8_prefix(std::string_view text, std::size_t max) {
  if (text.size() <= max) return text;
  std::size_t end = max;
  while (end > 0 && max - end < 3 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

/// A string that protobuf accepts: replaces each byte that is not UTF-8 (as file names may contain)
/// by '?'.
inline std::string to_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const std::size_t length = lead < 0x80                   ? 1
                               : lead >= 0xC2 && lead < 0xE0 ? 2
                               : lead >= 0xE0 && lead < 0xF0 ? 3
                               : lead >= 0xF0 && lead < 0xF5 ? 4
                                                             : 0;
    bool is_whole = length > 0 && length <= text.size();
    for (std::size_t i = 1; is_whole && i < length; ++i) {
      // The range of the second byte excludes overlong forms, surrogates and values above U+10FFFF.
      const auto byte = static_cast<unsigned char>(text[i]);
      const bool first = i == 1;
      const unsigned char least = first && lead == 0xE0   ? 0xA0
                                  : first && lead == 0xF0 ? 0x90
                                                          : 0x80;
      const unsigned char most = first && lead == 0xED ? 0x9F : first && lead == 0xF4 ? 0x8F : 0xBF;
      is_whole = byte >= least && byte <= most;
    }
    out.append(is_whole ? text.substr(0, length) : "?");
    text.remove_prefix(is_whole ? length : 1);
  }
  return out;
}

/// A job's name as part of a file name: only letters, digits, '-' and '_', and short enough to
/// leave room for a suffix.
inline std::string file_name(std::string_view name) {
  constexpr std::size_t kMaxBytes = 100;
  std::string safe(name.substr(0, kMaxBytes));
  for (char& c : safe) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_';
    if (!plain) c = '_';
  }
  return safe.empty() ? "job" : safe;
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
