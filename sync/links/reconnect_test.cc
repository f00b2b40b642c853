// When a cut is of the same outage as the one before.

#include "sync/links/reconnect.h"

#include "gtest/gtest.h"

namespace poseidon::reconnect_test {
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

/// Each attempt takes five seconds to fail.
TEST_F(ReconnectTest, AnOutageBeginsWithTheFirstAttempt) {
  reconnect_.attempt(seconds(100));
  EXPECT_EQ(reconnect_.cut(seconds(105)).silent, seconds(5));
  reconnect_.attempt(seconds(106));
  EXPECT_FALSE(reconnect_.cut(seconds(111)).give_up);
  reconnect_.attempt(seconds(125));
  EXPECT_TRUE(reconnect_.cut(seconds(130)).give_up);
}

TEST_F(ReconnectTest, OrWhenTheStreamWasCut) {
  reconnect_.attempt(seconds(10));
  reconnect_.in_order();
  EXPECT_EQ(reconnect_.cut(seconds(100)).silent, seconds(0));
  reconnect_.attempt(seconds(101));
  EXPECT_EQ(reconnect_.cut(seconds(106)).silent, seconds(6));
}

/// Under BSP nobody need answer soon: the attempt was none of an outage.
TEST_F(ReconnectTest, AnAttemptWhoseStreamHeldIsNoOutage) {
  reconnect_.attempt(seconds(100));
  reconnect_.written(seconds(101));
  EXPECT_EQ(reconnect_.cut(seconds(140)).silent, seconds(0));
}

/// Nor where the other side ends it in words: the job is over, or begins anew.
TEST_F(ReconnectTest, NorAFirstStreamThatIsRefusedLate) {
  reconnect_.attempt(seconds(100));
  reconnect_.written(seconds(101));
  const Reconnect::Decision first = reconnect_.cut(seconds(140), true);
  EXPECT_FALSE(first.give_up);
  EXPECT_EQ(first.silent, seconds(0));
  reconnect_.attempt(seconds(141));
  reconnect_.written(seconds(142));
  EXPECT_TRUE(reconnect_.cut(seconds(171), true).give_up) << "but the second is one";
}

TEST_F(ReconnectTest, AStreamThatHeldEndedTheOutageThoughNobodyAnswered) {
  reconnect_.cut(seconds(100));
  reconnect_.written(seconds(101));
  reconnect_.written(seconds(120));
  const Reconnect::Decision second = reconnect_.cut(seconds(140));
  EXPECT_FALSE(second.give_up);
  EXPECT_EQ(second.silent, seconds(0));
  EXPECT_EQ(second.pause, milliseconds(50));
}

/// A path that loses large packets: the greeting goes out, and each stream takes ten to twenty
/// seconds to break.
TEST_F(ReconnectTest, StreamsThatOnlySmallMessagesGetThroughDidNot) {
  reconnect_.cut(seconds(100));
  reconnect_.written(seconds(101));
  EXPECT_FALSE(reconnect_.cut(seconds(120)).give_up);
  reconnect_.written(seconds(121));
  EXPECT_TRUE(reconnect_.cut(seconds(141)).give_up);
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
}  // namespace poseidon::reconnect_test
