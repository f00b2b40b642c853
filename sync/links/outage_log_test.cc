#include "sync/links/outage_log.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::outage_log_test {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

TEST(OutageLog, TellsOfAnOutageOnceAndOfItsEnd) {
  std::vector<std::string> lines;
  const OutageLog::Log log = [&](const std::string& line) { lines.push_back(line); };
  OutageLog outage;
  outage.over("server 0", seconds(1), log);  // there was none
  const absl::Status why = absl::UnavailableError("keepalive watchdog timeout");
  for (int now : {100, 105, 120})
    outage.cut("server 0", why, seconds(100), seconds(now), seconds(30), log);
  EXPECT_TRUE(outage.is_out());
  outage.over("server 0", seconds(125), log);
  outage.over("server 0", seconds(126), log);
  EXPECT_THAT(lines, ElementsAre("the stream to server 0 is cut (keepalive watchdog timeout): "
                                 "connecting again, for 30 s at most",
                                 "server 0 answers again, after 25.0 s"));
}

TEST(OutageLog, AFlappingLineFillsNoLog) {
  std::vector<std::string> lines;
  const OutageLog::Log log = [&](const std::string& line) { lines.push_back(line); };
  OutageLog outage;
  for (int now = 100; now < 130; ++now) {
    outage.cut("x", absl::OkStatus(), seconds(now), seconds(now), seconds(30), log);
    outage.over("x", seconds(now), log);
  }
  EXPECT_EQ(lines.size(), 6u) << "at 100, 110 and 120 s, each with its end";
}

}  // namespace
}  // namespace poseidon::outage_log_test
