// When a cut is of the same outage as the one before.

#include "worker/reconnect.h"

#include "gtest/gtest.h"

namespace poseidon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ReconnectTest : public ::testing::Test {
 protected:
  static SyncerOptions options() {
    SyncerOptions options;
    options.reconnect_min = milliseconds(50);
    options.reconnect_max = milliseconds(1000);
    options.give_up_after = seconds(30);
    return options;
  }
  Reconnect reconnect_{options()};
};

TEST_F(ReconnectTest, PausesGrowAndAnOutageHasAnEnd) {
  EXPECT_EQ(reconnect_.cut(seconds(100)).pause, milliseconds(50));
  EXPECT_EQ(reconnect_.cut(seconds(101)).pause, milliseconds(100));
  EXPECT_FALSE(reconnect_.cut(seconds(129)).give_up);
  const Reconnect::Decision last = reconnect_.cut(seconds(130));
  EXPECT_TRUE(last.give_up);
  EXPECT_EQ(last.silent, seconds(30));
}

// Under BSP nobody may answer for long.
TEST_F(ReconnectTest, AStreamThatHeldEndedTheOutageThoughNobodyAnswered) {
  reconnect_.cut(seconds(100));
  reconnect_.written(seconds(101));
  reconnect_.written(seconds(120));
  const Reconnect::Decision second = reconnect_.cut(seconds(140));
  EXPECT_FALSE(second.give_up);
  EXPECT_EQ(second.silent, seconds(0));
  EXPECT_EQ(second.pause, milliseconds(50));
}

TEST_F(ReconnectTest, OneThatIsRefusedAtOnceDidNot) {
  for (int second = 100; second < 130; second += 2) {
    ASSERT_FALSE(reconnect_.cut(seconds(second)).give_up);
    reconnect_.written(seconds(second) + milliseconds(1));
  }
  EXPECT_TRUE(reconnect_.cut(seconds(130)).give_up);
}

TEST_F(ReconnectTest, NorOneThatIsRefusedLate) {
  reconnect_.cut(seconds(100), true);
  reconnect_.written(seconds(101));
  EXPECT_TRUE(reconnect_.cut(seconds(130), true).give_up);
}

TEST_F(ReconnectTest, AnAnswerEndsTheOutage) {
  reconnect_.cut(seconds(100));
  reconnect_.in_order();
  EXPECT_FALSE(reconnect_.cut(seconds(200)).give_up);
}

}  // namespace
}  // namespace poseidon
