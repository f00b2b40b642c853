#pragma once

// Cleans text from files and peers (names, reasons) before it goes to a terminal or into one line
// of a log, so that the text cannot control the terminal or forge log lines. Pure.
//
// Called by: cli, and daemons before they log foreign text. Calls: nothing.

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
