#include "common/base/text.h"

#include <string>

#include "gtest/gtest.h"

namespace poseidon::text_test {
namespace {

TEST(ToUtf8, LeavesWhatIsWhole) {
  for (const std::string text : {"", "plain", "gr\u00fc\u00df", "\u20ac 5", "\U0001F40B", "\uFFFD",
                                 "\u0800\uD7FF\uE000\U00010000\U0010FFFF"}) {
    EXPECT_EQ(to_utf8(text), text);
  }
}

TEST(ToUtf8, AQuestionMarkStandsForEachWrongByte) {
  EXPECT_EQ(to_utf8("caf\xE9.jpg"), "caf?.jpg");             // Latin-1
  EXPECT_EQ(to_utf8("\x80\xBF"), "??");                      // no lead
  EXPECT_EQ(to_utf8("a\xE2\x82"), "a??");                    // cut off
  EXPECT_EQ(to_utf8("\xE2\x82z"), "??z");                    // goes on otherwise
  EXPECT_EQ(to_utf8("\xC0\xAF\xE0\x80\xAF"), "?????");       // overlong
  EXPECT_EQ(to_utf8("\xED\xA0\x80"), "???");                 // a surrogate
  EXPECT_EQ(to_utf8("\xF4\x90\x80\x80\xF5\xFF"), "??????");  // beyond U+10FFFF
  EXPECT_EQ(to_utf8(std::string("a\0b", 3)), std::string("a\0b", 3));
}

TEST(FileName, HasNothingThatAPathMeans) {
  EXPECT_EQ(file_name("digits-2_B"), "digits-2_B");
  EXPECT_EQ(file_name("../a b.\u00fc"), "___a_b___");
  EXPECT_EQ(file_name(""), "job");
  EXPECT_EQ(file_name(std::string(256, 'x')), std::string(100, 'x'));
}

}  // namespace
}  // namespace poseidon::text_test
