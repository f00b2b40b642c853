#include "coordinator/members/load_monitor.h"

#include "gtest/gtest.h"

namespace poseidon::load_monitor_test {
namespace {

constexpr NodeId kNode(7);

TEST(LoadMonitor, TellsSharesOfTheWindow) {
  LoadMonitor monitor;
  EXPECT_FALSE(monitor.rates(kNode));
  LoadTotals totals{.machine = 3, .cores = 2, .cpu_seconds = 10.0, .cpu_wait_seconds = 1.0};
  monitor.add(kNode, totals, std::chrono::seconds(100));
  EXPECT_FALSE(monitor.rates(kNode)) << "no time has passed";
  totals.cpu_seconds = 13.0;
  totals.cpu_wait_seconds = 2.0;
  totals.disk_seconds = 0.5;
  totals.disk_bytes = 1000;
  totals.disk_waiting = 4;
  monitor.add(kNode, totals, std::chrono::seconds(102));
  const auto rates = monitor.rates(kNode);
  ASSERT_TRUE(rates);
  EXPECT_EQ(rates->machine, 3U);
  EXPECT_EQ(rates->cores, 2U);
  EXPECT_DOUBLE_EQ(rates->cores_used, 1.5);
  EXPECT_DOUBLE_EQ(rates->cores_wanted, 0.5);
  EXPECT_DOUBLE_EQ(rates->disk_share, 0.25);
  EXPECT_DOUBLE_EQ(rates->disk_bytes_per_s, 2000.0);
  EXPECT_EQ(rates->disk_waiting, 4U);
}

TEST(LoadMonitor, KeepsTheDisksRateWhileItDoesNotWrite) {
  LoadMonitor monitor;
  LoadTotals totals{.machine = 3, .cores = 2};
  monitor.add(kNode, totals, std::chrono::seconds(0));
  totals.disk_seconds = 2.0;
  totals.disk_bytes = 100;
  monitor.add(kNode, totals, std::chrono::seconds(2));
  for (int s = 3; s < 20; ++s) monitor.add(kNode, totals, std::chrono::seconds(s));
  EXPECT_DOUBLE_EQ(monitor.rates(kNode)->disk_bytes_per_s, 50.0);
  EXPECT_DOUBLE_EQ(monitor.rates(kNode)->disk_share, 0.0);
}

TEST(LoadMonitor, ANewProcessBeginsAnew) {
  LoadMonitor monitor;
  monitor.add(kNode, {.cores = 2, .cpu_seconds = 10.0}, std::chrono::seconds(0));
  monitor.add(kNode, {.cores = 2, .cpu_seconds = 12.0}, std::chrono::seconds(1));
  monitor.add(kNode, {.cores = 2, .cpu_seconds = 0.5}, std::chrono::seconds(2));
  EXPECT_FALSE(monitor.rates(kNode));
  monitor.add(kNode, {.cores = 2, .cpu_seconds = 1.5}, std::chrono::seconds(3));
  EXPECT_DOUBLE_EQ(monitor.rates(kNode)->cores_used, 1.0);
  monitor.remove(kNode);
  EXPECT_FALSE(monitor.rates(kNode));
}

TEST(LoadMonitor, HeartbeatsThatArriveAtOnceAfterAPauseDoNotRaiseTheRates) {
  // A process uses half a core. The coordinator stands still from 10 to 110 s; then the heartbeats
  // of that time arrive within milliseconds.
  LoadMonitor monitor;
  const auto totals = [](double s) {
    return LoadTotals{.cores = 2, .cpu_seconds = 0.5 * s, .cpu_wait_seconds = 0.1 * s};
  };
  for (int s = 0; s <= 10; ++s) monitor.add(kNode, totals(s), std::chrono::seconds(s));
  for (int s = 11; s <= 110; ++s) {
    monitor.add(kNode, totals(s), std::chrono::microseconds(110'000'000 + s));
    EXPECT_LE(monitor.rates(kNode)->cores_used, 0.6) << "after " << s << " s";
  }
  for (int s = 111; s <= 120; ++s) {
    monitor.add(kNode, totals(s), std::chrono::seconds(s));
    EXPECT_NEAR(monitor.rates(kNode)->cores_used, 0.5, 0.01) << "after " << s << " s";
    EXPECT_NEAR(monitor.rates(kNode)->cores_wanted, 0.1, 0.01);
  }
}

}  // namespace
}  // namespace poseidon::load_monitor_test
