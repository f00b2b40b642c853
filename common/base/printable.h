#pragma once

// Text from files and peers (names, reasons), before it goes to a terminal or into one line of a
// log: whoever wrote it shall neither command the terminal nor write lines of his own. Pure.

#include <string>
#include <string_view>

#include "common/base/text.h"

namespace poseidon {

namespace printable_internal {
inline std::string without_controls(std::string_view text, bool keeps_lines) {
  const std::string whole = to_utf8(text);
  std::string out;
  out.reserve(whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    // U+0080 to U+009F command terminals too; in UTF-8 they are C2 and one more byte.
    const bool is_c1 = whole[i] == '\xC2' && static_cast<unsigned char>(whole[i + 1]) < 0xA0;
    const bool is_line_end = keeps_lines && whole[i] == '\n';
    out.push_back(is_c1 || (is_control(whole[i]) && !is_line_end) ? ' ' : whole[i]);
    if (is_c1) ++i;
  }
  return out;
}
}  // namespace printable_internal

/// In one line: a space for each control character, '?' for each byte that is no UTF-8.
inline std::string printable(std::string_view text) {
  return printable_internal::without_controls(text, /*keeps_lines=*/false);
}

/// The same for a text of several lines, which it stays.
inline std::string printable_lines(std::string_view text) {
  return printable_internal::without_controls(text, /*keeps_lines=*/true);
}

}  // namespace poseidon
