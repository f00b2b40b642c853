#include "common/files/json_fields.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::checked_json_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Reads a record of two members.
absl::Status read(std::string_view text) {
  const absl::StatusOr<nlohmann::json> json = parse_checked_json(text, "record");
  if (!json.ok()) return json.status();
  JsonFields fields(*json, "record", "");
  std::string name;
  std::int64_t samples = 0;
  fields.string("name", &name);
  fields.integer("samples", &samples, 0, 1 << 30);
  return fields.finish();
}

std::string record() { return checked_json({{"name", "digits \xC3\xA9"}, {"samples", 6400}}); }

TEST(CheckedJson, IsReadAsItWasWritten) {
  EXPECT_EQ(read(record()), absl::OkStatus());
  EXPECT_THAT(record(),
              AllOf(StartsWith("{\n \"checksum\": \""), HasSubstr("\n \"samples\": 6400\n}\n")));
}

TEST(CheckedJson, NoBitMayTurn) {
  const std::string whole = record();
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string turned = whole;
    turned[bit / 8] = static_cast<char>(turned[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(read(turned).ok()) << "bit " << bit << ": " << turned;
  }
}

TEST(CheckedJson, NothingMayBeMissingOrAdded) {
  const std::string whole = record();
  for (std::size_t n = 0; n < whole.size(); ++n) {
    EXPECT_FALSE(read(whole.substr(0, n)).ok()) << n;
  }
  EXPECT_FALSE(read(whole + " ").ok());
  EXPECT_FALSE(read(" " + whole).ok());
}

TEST(CheckedJson, SaysWhatToDo) {
  std::string other = record();
  other.replace(other.find("6400"), 4, "4400");
  EXPECT_TRUE(absl::IsDataLoss(read(other)));
  EXPECT_THAT(std::string(read(other).message()),
              AllOf(StartsWith("record: its checksum is "), HasSubstr("use an intact copy"),
                    HasSubstr("remove the line with the checksum")));
}

TEST(CheckedJson, WhoEditsTakesTheLineOut) {
  std::string edited = record();
  edited.erase(2, edited.find('\n', 2) - 1);
  EXPECT_EQ(read(edited), absl::OkStatus()) << edited;
  EXPECT_EQ(read(R"({"name": "x", "samples": 1})"), absl::OkStatus()) << "of an earlier version";
  EXPECT_THAT(std::string(read(R"({"name": "x", "checksum": "00000000"})").message()),
              HasSubstr("checksum"))
      << "another layout is another document";
  EXPECT_FALSE(read(R"({"checksum": 7, "name": "x"})").ok());
  EXPECT_FALSE(read(R"({"checksum": "", "name": "x"})").ok());
}

}  // namespace
}  // namespace poseidon::checked_json_test
