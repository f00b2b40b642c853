#include "common/daemon/command_line.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::config_file_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ConfigFileTest : public ::testing::Test {
 protected:
  ConfigFileTest() : app_("A daemon.", "poseidon-thing") {
    app_.add_option("--listen", listen_)->required();
    app_.add_option("--lease-ms", lease_ms_)->check(CLI::Range(1, 100000));
    app_.add_flag("!--no-shared-memory", shared_memory_);
    app_.add_option("--tag", tags_);
    app_.set_version_flag("--version", "1");
    add_config_option(app_);
  }

  std::string file(const std::string& name, const std::string& contents) {
    const std::filesystem::path path =
        std::filesystem::path(::testing::TempDir()) / ("config_file_test-" + name + ".json");
    std::ofstream(path) << contents;
    return path.string();
  }

  /// "" or the error.
  std::string parse(std::vector<std::string> arguments) {
    std::reverse(arguments.begin(), arguments.end());
    try {
      app_.parse(arguments);
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return "";
  }

  CLI::App app_;
  std::string listen_;
  int lease_ms_ = 3000;
  bool shared_memory_ = true;
  std::vector<std::string> tags_;
};

TEST_F(ConfigFileTest, GivesOptionsOfEveryKind) {
  const std::string path = file("all", R"({"listen": "10.0.0.1:1", "lease-ms": 1500,
                                           "no-shared-memory": true, "tag": ["a", 2]})");
  EXPECT_EQ(parse({"--config", path}), "");
  EXPECT_EQ(listen_, "10.0.0.1:1");
  EXPECT_EQ(lease_ms_, 1500);
  EXPECT_FALSE(shared_memory_);
  EXPECT_EQ(tags_, (std::vector<std::string>{"a", "2"}));
}

TEST_F(ConfigFileTest, TheCommandLineGoesFirstThenTheLastFile) {
  const std::string common = file("common", R"({"listen": "common:1", "lease-ms": 1, "tag": "c"})");
  const std::string own = file("own", R"({"listen": "own:1", "lease-ms": 2})");
  EXPECT_EQ(parse({"--config", common, "--config", own, "--listen", "line:1"}), "");
  EXPECT_EQ(listen_, "line:1");
  EXPECT_EQ(lease_ms_, 2);
  EXPECT_EQ(tags_, std::vector<std::string>{"c"});
}

TEST_F(ConfigFileTest, WhatIsWrongWithAValueComesWithItsFile) {
  const std::string common = file("wrong", R"({"listen": "a:1", "lease-ms": 0})");
  const std::string error = parse({"--config", common});
  EXPECT_THAT(error, HasSubstr("--lease-ms"));
  EXPECT_EQ(config_note(app_, error), " (of " + common + ")");
  EXPECT_EQ(config_note(app_, "--lease-ms-most: is another one, and --lease none"), "");
}

TEST_F(ConfigFileTest, WhatIsWrongOnTheCommandLineIsNoFilesFault) {
  const std::string path = file("fine", R"({"listen": "a:1", "lease-ms": 7})");
  const std::string error = parse({"--config", path, "--lease-ms", "zero"});
  EXPECT_THAT(error, HasSubstr("--lease-ms"));
  EXPECT_EQ(config_note(app_, error), "") << "the command line gave it";
}

TEST_F(ConfigFileTest, OfSeveralFilesTheOneThatCountsIsNamed) {
  const std::string common = file("early", R"({"listen": "a:1", "lease-ms": 7})");
  const std::string own = file("late", R"({"lease-ms": 8})");
  EXPECT_EQ(parse({"--config", common, "--config", own}), "");
  EXPECT_EQ(config_note(app_, "--lease-ms 8 is too short"), " (of " + own + ")");
  EXPECT_EQ(config_note(app_, "--listen a:1: nobody is there"), " (of " + common + ")");
}

TEST_F(ConfigFileTest, AnUnknownKeyIsNamedWithTheNearest) {
  const std::string good = file("good", R"({"listen": "a:1"})");
  const std::string bad = file("bad", R"({"lease_ms": 1})");
  EXPECT_THAT(parse({"--config", bad, "--config", good}),
              AllOf(HasSubstr(bad), HasSubstr("\"lease_ms\" is no option of poseidon-thing"),
                    HasSubstr("did you mean \"lease-ms\"")));
}

TEST_F(ConfigFileTest, HelpAndVersionAreNoSettings) {
  EXPECT_THAT(parse({"--config", file("help", R"({"version": true})")}),
              HasSubstr("\"version\" is no option"));
}

TEST_F(ConfigFileTest, WhatIsNoObjectOrNoValueIsRefused) {
  for (const char* text : {"", "[]", "{", "\"a\"", "{\"listen\": 1,}"}) {
    const std::string path = file("broken", text);
    EXPECT_THAT(parse({"--config", path}),
                AllOf(HasSubstr(path), HasSubstr(R"(write {"OPTION": VALUE, ...})")))
        << text;
  }
  EXPECT_THAT(parse({"--config", file("twice", R"({"listen": "a:1", "listen": "b:1"})")}),
              HasSubstr("twice"));
  EXPECT_THAT(parse({"--config", "/dev/zero"}), HasSubstr("bytes of JSON, at most"));
  for (const char* value : {"null", "{}", "[[]]"}) {
    EXPECT_THAT(parse({"--config", file("value", std::string(R"({"listen": )") + value + "}")}),
                HasSubstr("\"listen\" is "))
        << value;
  }
}

TEST_F(ConfigFileTest, ValuesAreCheckedLikeThoseOfTheCommandLine) {
  EXPECT_THAT(parse({"--config", file("range", R"({"listen": "a:1", "lease-ms": 0})")}),
              HasSubstr("--lease-ms"));
  EXPECT_THAT(parse({"--config", file("empty", "{}")}), HasSubstr("--listen is required"));
  EXPECT_THAT(parse({"--config", "/no/such/file.json"}), HasSubstr("/no/such/file.json"));
}

}  // namespace
}  // namespace poseidon::config_file_test
