#include "common/files/json_fields.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::json_fields_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string parse_error(std::string_view text, const JsonLimits& limits = {}) {
  return std::string(parse_json(text, "file", limits).status().message());
}

TEST(ParseJson, RefusesWhatOthersLetPass) {
  EXPECT_TRUE(parse_json(R"({"a": [1, {"b": null}], "c": {"a": 1}})", "file").ok());
  EXPECT_EQ(parse_error(R"({"a": [0, {"b": 1, "b": 2}]})"),
            "file: a[1].b: the key is there twice; keep one of them");
  EXPECT_THAT(parse_error(""), StartsWith("file: is empty"));
  EXPECT_THAT(parse_error("{\"a\": 1,\n \"b\" 2}"), HasSubstr("line 2"));
  EXPECT_THAT(parse_error("{} {}"), HasSubstr("parse error"));
  EXPECT_THAT(parse_error("{\"a\": NaN}"), HasSubstr("parse error"));
  EXPECT_THAT(parse_error("\"\xff\""), HasSubstr("UTF-8"));
  EXPECT_THAT(parse_error(std::string("{}\0 and more", 12)), HasSubstr("zero byte at offset 2"));
}

TEST(ParseJson, AValueThatCannotBeReadIsNamed) {
  EXPECT_THAT(parse_error("{\"a\": 1e999}"), StartsWith("file: a: number overflow"));
  EXPECT_THAT(parse_error(R"({"a": {"b": [1, {"c": 0}, -1e999]}})"),
              StartsWith("file: a.b[2]: number overflow"));
  for (const char* value : {"Infinity", "-Infinity", "NaN", "", "-", "}"}) {
    EXPECT_THAT(parse_error(R"({"a": 1, "o": {"x": 1, "rate": )" + std::string(value)),
                StartsWith("file: o.rate: parse error at line 1"))
        << value;
  }
  EXPECT_THAT(parse_error("1e999"), StartsWith("file: number overflow"));
  // Between two keys it belongs to no value.
  EXPECT_THAT(parse_error(R"({"o": {"a": 1 "b": 2}})"), StartsWith("file: o: parse error"));
  EXPECT_THAT(parse_error(R"({"o": {}, })"), StartsWith("file: parse error"));
}

TEST(ParseJson, Bounds) {
  EXPECT_TRUE(parse_json("[[[]]]", "file", {.max_bytes = 6, .max_depth = 3}).ok());
  EXPECT_THAT(parse_error("[[[]]]", {.max_bytes = 5}), HasSubstr("at most 5 are allowed"));
  EXPECT_EQ(parse_error(R"({"a": [[]]})", {.max_depth = 2}),
            "file: a[0]: more than 2 arrays and objects inside each other");
  // Would overflow the stack of a recursive parser.
  EXPECT_THAT(parse_error(std::string(1'000'000, '[')), HasSubstr("inside each other"));
}

/// Reads one field out of {"key": <value>} and returns the error.
template <typename Read>
std::string read_error(std::string_view value, Read read) {
  const auto json = parse_json("{\"key\": " + std::string(value) + "}", "file");
  EXPECT_TRUE(json.ok()) << value;
  JsonFields fields(*json, "file", "part");
  read(fields);
  return std::string(fields.finish().message());
}

TEST(JsonFields, Numbers) {
  double out = 7;
  const auto read = [&](JsonFields& fields) {
    fields.number("key", &out, {.min = 0, .max = 1, .max_excluded = true});
  };
  EXPECT_EQ(read_error("0.25", read), "");
  EXPECT_EQ(out, 0.25);
  EXPECT_EQ(read_error("0", read), "");
  EXPECT_EQ(out, 0);
  EXPECT_EQ(read_error("\"x\"", read),
            "file: part.key: expected a number from 0 to less than 1, got \"x\"");
  for (const char* wrong : {"1", "-0.1", "true", "null", "[0.5]", "{}"}) {
    EXPECT_NE(read_error(wrong, read), "") << wrong;
  }
  EXPECT_EQ(out, 0) << "a refused value must not be taken";
}

TEST(JsonFields, Integers) {
  std::int64_t out = 7;
  const auto read = [&](JsonFields& fields) { fields.integer("key", &out, -5, 5); };
  EXPECT_EQ(read_error("-5", read), "");
  EXPECT_EQ(out, -5);
  EXPECT_EQ(read_error("1.0", read),
            "file: part.key: expected an integer from -5 to 5, without point or exponent, got 1.0");
  EXPECT_EQ(read_error("1.5", read), "file: part.key: expected an integer from -5 to 5, got 1.5");
  for (const char* wrong : {"6", "-6", "\"1\"", "18446744073709551615", "18446744073709551616",
                            "9223372036854775808", "1e0", "true"}) {
    EXPECT_NE(read_error(wrong, read), "") << wrong;
  }
  std::uint64_t seed = 0;
  const auto read_seed = [&](JsonFields& fields) { fields.unsigned_integer("key", &seed); };
  EXPECT_EQ(read_error("18446744073709551615", read_seed), "");
  EXPECT_EQ(seed, ~std::uint64_t{0});
  EXPECT_NE(read_error("-1", read_seed), "");
  EXPECT_NE(read_error("1.0", read_seed), "");
}

TEST(JsonFields, TextsChoicesArrays) {
  std::string text;
  const auto read_text = [&](JsonFields& fields) { fields.string("key", &text); };
  EXPECT_EQ(read_error("\"abc\"", read_text), "");
  EXPECT_EQ(text, "abc");
  for (const char* wrong : {"\"\"", "1", "\"a\\u0000b\""})
    EXPECT_NE(read_error(wrong, read_text), "");
  EXPECT_THAT(read_error("\"" + std::string(5000, 'x') + "\"", read_text), HasSubstr("x..."));

  const auto choose = [&](JsonFields& fields) { fields.one_of("key", &text, {"bsp", "step"}); };
  EXPECT_EQ(read_error("\"step\"", choose), "");
  EXPECT_EQ(text, "step");
  EXPECT_EQ(read_error("\"setp\"", choose),
            "file: part.key: expected one of \"bsp\", \"step\", got \"setp\"; did you mean "
            "\"step\"?");
  EXPECT_NE(read_error("1", choose), "");

  std::vector<std::int64_t> numbers;
  const auto read_array = [&](JsonFields& fields) { fields.integers("key", &numbers, 1, 9, 2, 2); };
  EXPECT_EQ(read_error("[1, 9]", read_array), "");
  EXPECT_THAT(numbers, ElementsAre(1, 9));
  EXPECT_EQ(read_error("[1]", read_array),
            "file: part.key: expected an array of 2 integers, got [1]");
  EXPECT_EQ(read_error("[1, 0]", read_array),
            "file: part.key[1]: expected an integer from 1 to 9, got 0");
  EXPECT_NE(read_error("5", read_array), "");
  bool flag = false;
  const auto read_flag = [&](JsonFields& fields) { fields.boolean("key", &flag); };
  EXPECT_EQ(read_error("true", read_flag), "");
  EXPECT_TRUE(flag);
  EXPECT_NE(read_error("1", read_flag), "");
}

TEST(JsonFields, UnknownKeysExplainMissingOnes) {
  const nlohmann::json json = nlohmann::json::object({{"batchsize", 4}});
  JsonFields fields(json, "file", "");
  std::int64_t out = 0;
  fields.require("batch_size");
  fields.integer("batch_size", &out, 1, 9);
  EXPECT_EQ(fields.finish().message(),
            "file: batchsize: unknown key; did you mean \"batch_size\"?");
}

TEST(JsonFields, FarKeysListTheKnown) {
  const nlohmann::json json = nlohmann::json::object({{"zzz\n", 4}});
  JsonFields fields(json, "file", "");
  bool out = false;
  fields.boolean("shuffle", &out);
  EXPECT_EQ(fields.finish().message(), "file: zzz\\n: unknown key; known here: shuffle");
}

TEST(JsonFields, HeightAndWidthAreOneIntegerOrTwo) {
  std::int64_t height = 0;
  std::int64_t width = 0;
  const auto read = [&](JsonFields& fields) { fields.height_width("key", &height, &width, 1, 9); };
  EXPECT_EQ(read_error("3", read), "");
  EXPECT_EQ(std::pair(height, width), std::pair(std::int64_t{3}, std::int64_t{3}));
  EXPECT_EQ(read_error("[4, 5]", read), "");
  EXPECT_EQ(std::pair(height, width), std::pair(std::int64_t{4}, std::int64_t{5}));
  EXPECT_EQ(read_error("[4, 10]", read),
            "file: part.key: expected an integer from 1 to 9, or [height, width] of such, got "
            "[4,10]");
  for (const char* wrong : {"0", "[4]", "[4, 5, 6]", "\"4\"", "[4, 5.0]", "[]"}) {
    EXPECT_NE(read_error(wrong, read), "") << wrong;
  }
  EXPECT_EQ(std::pair(height, width), std::pair(std::int64_t{4}, std::int64_t{5}));
}

TEST(JsonFields, AnArrayAsItIsAndRefusalsOfTheWhole) {
  const nlohmann::json json = {{"few", {1, "2"}}, {"many", nlohmann::json(12, 0)}, {"new", 1}};
  JsonFields fields(json, "file", "");
  EXPECT_EQ(fields.array("few", "parts", 1, 2), &json["few"]);
  EXPECT_TRUE(fields.ok());
  EXPECT_EQ(fields.array("many", "parts", 1, 11), nullptr);
  EXPECT_EQ(fields.status().message(), "file: many: expected an array of 1 to 11 parts, got 12")
      << "and the key that nobody asked for yet is not unknown";
  EXPECT_FALSE(fields.ok());

  JsonFields part(json["few"][0], "file", "few[0]");
  EXPECT_EQ(part.array("any", "parts", 1, 2), nullptr);
  JsonFields whole(json, "file", "a.b");
  whole.refuse("does not fit");
  EXPECT_EQ(whole.status().message(), "file: a.b: does not fit");
}

TEST(JsonFields, MissingAndNoObject) {
  const nlohmann::json empty = nlohmann::json::object();
  JsonFields fields(empty, "file", "a.b");
  fields.require("c");
  fields.value("c");
  EXPECT_EQ(fields.finish().message(), "file: a.b.c: is missing; it has no default");

  const nlohmann::json misspelt = {{"tpye", 1}, {"other", 2}};
  JsonFields early(misspelt, "file", "");
  early.require("type");
  EXPECT_EQ(early.status().message(),
            "file: type: is missing; it has no default (is \"tpye\" a misspelt one?)");

  const nlohmann::json array = {1, 2};
  JsonFields none(array, "file", "a");
  none.require("c");
  EXPECT_EQ(none.finish().message(), "file: a: expected an object {...}, got [1,2]");
}

}  // namespace
}  // namespace poseidon::json_fields_test
