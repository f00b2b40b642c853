#include "common/base/text.h"

#include <string>

#include "gtest/gtest.h"

namespace poseidon::printable_test {
namespace {

TEST(Printable, CommandsNoTerminal) {
  EXPECT_EQ(printable("a\x1b[31mb\x07\x7f\r"), "a [31mb   ");
  EXPECT_EQ(printable("\u009b31m and \xC2\x80"), " 31m and  ") << "of C1, as UTF-8";
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "?31m")
      << "and as one byte";
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a b");
  EXPECT_EQ(printable("caf\xE9.jpg"), "caf?.jpg");
  for (const std::string text : {"", "gr\u00fc\u00df \u20ac \U0001F40B", "\u00a0", "\xC2\xBF"}) {
    EXPECT_EQ(printable(text), text);
  }
  EXPECT_EQ(printable("\xC2"), "?") << "cut off";
}

TEST(Printable, IsOneLineUnlessItMayBeMore) {
  EXPECT_EQ(printable("a\nposeidon: all is well\n"), "a poseidon: all is well ");
  EXPECT_EQ(printable_lines("a\n\x1b[2Jb\tc\n"), "a\n [2Jb c\n");
}

}  // namespace
}  // namespace poseidon::printable_test
