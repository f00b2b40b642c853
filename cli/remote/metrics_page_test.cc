#include "cli/remote/metrics_page.h"

#include <array>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::metrics_page_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr std::array<std::string_view, 5> kNames = {"bytes_total", "up", "seconds_sum", "odd",
                                                    "temperature"};

MetricsPage page_of(std::string_view text) {
  absl::StatusOr<MetricsPage> page = MetricsPage::parse(text, kNames);
  EXPECT_TRUE(page.ok()) << page.status();
  return page.ok() ? *std::move(page) : MetricsPage();
}

TEST(MetricsPage, SumsByNameAndLabels) {
  const MetricsPage page = page_of(
      "# HELP bytes_total of layers\n# TYPE bytes_total counter\n"
      "bytes_total{layer=\"a\",scheme=\"ps\"} 3\n"
      "bytes_total{layer=\"b\",scheme=\"ps\"} 4\n"
      "bytes_total{layer=\"c\",scheme=\"sfb\"} 5.5e1 1712345678000\n\n"
      "up 1\r\n"
      "seconds_sum{} 0.25\n"
      "unknown{layer=\"a\"} 7\n");
  EXPECT_EQ(page.sum("bytes_total"), 62.0);
  EXPECT_EQ(page.sum("bytes_total", {{"scheme", "ps"}}), 7.0);
  EXPECT_EQ(page.sum("bytes_total", {{"scheme", "ps"}, {"layer", "b"}}), 4.0);
  EXPECT_EQ(page.sum("bytes_total", {{"scheme", "other"}}), std::nullopt);
  EXPECT_EQ(page.sum("up"), 1.0);
  EXPECT_EQ(page.sum("seconds_sum"), 0.25);
  EXPECT_EQ(page.sum("unknown"), std::nullopt) << "nobody asked for it";
  EXPECT_THAT(page.by("bytes_total", "scheme"), ElementsAre(Pair("ps", 7.0), Pair("sfb", 55.0)));
  EXPECT_THAT(page.by("up", "scheme"), ElementsAre());
  EXPECT_THAT(page.by("missing", "scheme"), ElementsAre());
}

TEST(MetricsPage, ValuesOfLabelsAreUnescaped) {
  const MetricsPage page = page_of("odd{layer=\"a\\\"b\\\\c\\nd}, \"} 2\n");
  EXPECT_THAT(page.by("odd", "layer"), ElementsAre(Pair("a\"b\\c\nd}, ", 2.0)));
}

TEST(MetricsPage, WhatIsNotFiniteCountsAsMissing) {
  const MetricsPage page =
      page_of("temperature NaN\nodd{of=\"a\"} +Inf\nodd{of=\"b\"} -Inf\nodd{of=\"c\"} 1\nup -0\n");
  EXPECT_EQ(page.sum("temperature"), std::nullopt);
  EXPECT_EQ(page.sum("odd"), std::nullopt);
  EXPECT_EQ(page.sum("odd", {{"of", "c"}}), 1.0);
  EXPECT_THAT(page.by("odd", "of"), ElementsAre(Pair("c", 1.0)));
}

TEST(MetricsPage, NobodyHasThatManyLabels) {
  std::string labels;
  for (int i = 0; i < 16; ++i) labels += "a=\"\",";
  EXPECT_TRUE(MetricsPage::parse("up{" + labels + "} 1\n", kNames).ok());
  EXPECT_FALSE(MetricsPage::parse("up{" + labels + "a=\"\"} 1\n", kNames).ok());
}

TEST(MetricsPage, SaysWhichLineIsNoMetric) {
  for (const char* line :
       {"up", "up one", "up 1 2 3", "up{", "up{a} 1", "up{a=1} 1", "up{a=\"1} 1", "up{a=\"1\\",
        "up{a=\"1\"b=\"2\"} 1", "up{=\"1\"} 1", "<html>", "{a=\"b\"} 1", "\x01\x02"}) {
    SCOPED_TRACE(line);
    const auto page = MetricsPage::parse(std::string("up 1\n") + line + "\nup 2\n", kNames);
    ASSERT_FALSE(page.ok());
    EXPECT_EQ(page.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(page.status().message(), HasSubstr("line 2 is no metric"));
  }
}

}  // namespace
}  // namespace poseidon::metrics_page_test
