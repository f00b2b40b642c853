#pragma once

// Text for people, logs and names of files: text from others made fit for them, numbers, quantities
// and times in words, and Abseil's strings with the standard library's. Pure.

#include <array>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

/// The shortest text that parses to the same number: 0.99999999, 1e+39.
inline std::string number_text(double value) {
  std::array<char, 32> text;
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

/// "0 B", "12.3 kB", "117 MB/s": powers of 1000, three significant digits. `value` >= 0.
inline std::string scaled_text(double value, std::string_view unit) {
  static constexpr std::array kPrefixes = {"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  // 999.5 would print as "1e+03", so the next prefix begins where rounding reaches it.
  while (value >= 999.5 && prefix + 1 < kPrefixes.size()) {
    value /= 1000.0;
    ++prefix;
  }
  return absl::StrFormat("%.3g %s%s", value, kPrefixes.at(prefix), unit);
}

inline std::string bytes_text(double bytes) { return scaled_text(bytes, "B"); }

/// For people: "412 us", "3.07 ms", "1.294 s"; "-" for zero and below.
inline std::string seconds_text(double seconds) {
  if (!(seconds > 0.0)) return "-";
  if (seconds < 0.9995e-3) return absl::StrFormat("%.3g us", seconds * 1e6);
  if (seconds < 0.9995) return absl::StrFormat("%.3g ms", seconds * 1e3);
  return absl::StrFormat("%.4g s", seconds);
}

namespace printable_internal {
inline std::string without_controls(std::string_view text, bool keeps_lines) {
  const std::string whole = to_utf8(text);
  std::string out;
  out.reserve(whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    // U+0080 to U+009F are terminal controls, too; in UTF-8 they are C2 and one more byte.
    const bool is_c1 = whole[i] == '\xC2' && static_cast<unsigned char>(whole[i + 1]) < 0xA0;
    const bool is_line_end = keeps_lines && whole[i] == '\n';
    out.push_back(is_c1 || (is_control(whole[i]) && !is_line_end) ? ' ' : whole[i]);
    if (is_c1) ++i;
  }
  return out;
}
}  // namespace printable_internal

/// One line: replaces each control character by a space and each byte that is not UTF-8 by '?'.
inline std::string printable(std::string_view text) {
  return printable_internal::without_controls(text, /*keeps_lines=*/false);
}

/// The same, but keeps line ends.
inline std::string printable_lines(std::string_view text) {
  return printable_internal::without_controls(text, /*keeps_lines=*/true);
}

}  // namespace poseidon
