#include "common/daemon/log.h"

#include <algorithm>
#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

namespace poseidon::log_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::string logged(const LogOptions& options, const std::function<void()>& act) {
  testing::internal::CaptureStderr();
  EXPECT_TRUE(start_log("server", options).ok());
  act();
  return testing::internal::GetCapturedStderr();
}

TEST(JsonLog, ALineIsAnObjectWithWhatIsKnown) {
  const auto bare = nlohmann::json::parse(
      json_log_line("2026-11-21T20:00:00.000Z", "info", "worker", 12, {}, "hello"));
  EXPECT_EQ(bare, nlohmann::json::parse(R"({"time":"2026-11-21T20:00:00.000Z","level":"info",
      "daemon":"worker","pid":12,"message":"hello"})"));
  const auto full = nlohmann::json::parse(json_log_line(
      "t", "error", "worker", 12, {.node = 3, .job = "digits-1", .epoch = 7}, "a \"b\"\n\xff"));
  EXPECT_EQ(full["node"], 3);
  EXPECT_EQ(full["job"], "digits-1");
  EXPECT_EQ(full["epoch"], 7);
  EXPECT_EQ(full["message"], "a \"b\"\n\xEF\xBF\xBD");
}

TEST(TextLog, TheContextStandsInEachLine) {
  EXPECT_EQ(log_context_text({}), "");
  EXPECT_EQ(log_context_text({.node = 3, .job = "", .epoch = 0}), " (node 3)");
  EXPECT_EQ(log_context_text({.node = 0, .job = "digits-1", .epoch = 7}),
            " (job digits-1, epoch 7)");
  const std::string text = logged({}, [] {
    spdlog::info("first");
    set_log_node(4);
    set_log_job("digits-1", 2);
    spdlog::info("second");
    set_log_job("", 0);
    set_log_node(0);
  });
  EXPECT_THAT(text, ContainsRegex(" info server\\[[0-9]+\\] first\n"));
  EXPECT_THAT(text, HasSubstr("] (node 4, job digits-1, epoch 2) second\n"));
}

TEST(TextLog, AMessageIsOneLine) {
  const std::string text = logged({}, [] { spdlog::info("job {}", "a\n2026 error forged\x7f"); });
  EXPECT_THAT(text, ContainsRegex("job a 2026 error forged \n$"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(Log, LastWordsAreALineLikeOthers) {
  const std::string text = logged({.level = "error", .format = "json"},
                                  [] { EXPECT_TRUE(log_last_words("the disk is full")); });
  EXPECT_EQ(nlohmann::json::parse(text)["message"], "the disk is full");
  EXPECT_EQ(logged({.level = "off"}, [] { EXPECT_FALSE(log_last_words("a")); }), "");
}

TEST(Log, AFloodIsCutAndCounted) {
  const std::string text = logged({.level = "info", .format = "json"}, [] {
    for (int i = 0; i < 1000; ++i) spdlog::warn("chunk {} is refused", i);
    spdlog::warn("another matter");
  });
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_GE(lines, 51);
  EXPECT_LT(lines, 100) << "unless a thousand lines took a minute";
  EXPECT_THAT(text, HasSubstr("another matter"));
}

TEST(Log, WhatIsUnknownIsRefused) {
  EXPECT_THAT(std::string(start_log("x", {.level = "loud", .format = "text"}).message()),
              HasSubstr("known: trace, debug"));
  EXPECT_THAT(std::string(start_log("x", {.level = "info", .format = "xml"}).message()),
              HasSubstr("known: text, json"));
}

}  // namespace
}  // namespace poseidon::log_test
