#include "coordinator/admission.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

TEST(OneLine, HasNoControlCharactersAndABound) {
  EXPECT_EQ(one_line("a\nb\tc\x1b[31m\x7f"), "a b c [31m ");
  const std::string line = one_line(std::string(5000, 'x'));
  EXPECT_EQ(line.size(), 2004u);
  EXPECT_EQ(line.substr(1999), "x ...");
}

TEST(OneLine, CutsThroughNoLetter) {
  // What protobuf took as a string goes into other messages, whose readers take no half letters: a
  // node could make every answer to `poseidon status` unreadable.
  for (std::size_t before = 1990; before < 2005; ++before) {
    const std::string text = std::string(before, 'x') + "\u00e4\u20ac\U0001F600\u00e4\u00e4\u00e4";
    EXPECT_NO_THROW((void)nlohmann::json(one_line(text)).dump()) << before;
  }
}

}  // namespace
}  // namespace poseidon
