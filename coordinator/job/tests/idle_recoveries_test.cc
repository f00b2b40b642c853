#include "coordinator/job/reports/idle_recoveries.h"

#include "gtest/gtest.h"

namespace poseidon::idle_recoveries_test {
namespace {

using std::chrono::seconds;
constexpr IdleRecoveriesOptions kOptions{.most = 3, .spacing = seconds(3), .most_on_the_way = 4};

TEST(IdleRecoveries, SoManyInARowAndNoMore) {
  IdleRecoveries recoveries(kOptions);
  for (int i = 1; i <= 3; ++i) {
    recoveries.count(10, seconds(10 * i));
    EXPECT_EQ(recoveries.too_often(), std::nullopt) << i;
  }
  recoveries.count(10, seconds(40));
  EXPECT_EQ(recoveries.too_often(), "3 times in a row");
}

TEST(IdleRecoveries, AnIterationThatIsNewEndsTheRow) {
  IdleRecoveries recoveries(kOptions);
  for (int i = 1; i <= 50; ++i) {
    recoveries.count(10, seconds(10 * i));
    if (i % 3 == 0) recoveries.got_on();
    EXPECT_EQ(recoveries.too_often(), std::nullopt) << i;
  }
}

TEST(IdleRecoveries, LossesOfOneTroubleCountOnce) {
  IdleRecoveries recoveries(kOptions);
  for (int i = 0; i < 12; ++i)
    recoveries.count(10, seconds(10) + std::chrono::milliseconds(200) * i);
  EXPECT_EQ(recoveries.too_often(), std::nullopt);
  recoveries.count(10, seconds(12) + std::chrono::milliseconds(500));
  EXPECT_EQ(recoveries.too_often(), "13 times") << "however near to each other";
}

// Each epoch begins further on than the one before, and none where the job has not been.
TEST(IdleRecoveries, OnTheWayBackEachMayKeepALittle) {
  IdleRecoveries recoveries(kOptions);
  for (int i = 1; i <= 12; ++i) {
    recoveries.count(i, seconds(10 * i));
    EXPECT_EQ(recoveries.too_often(), std::nullopt) << i;
  }
  recoveries.count(13, seconds(130));
  EXPECT_EQ(recoveries.too_often(), "13 times");
  recoveries.got_on();
  EXPECT_EQ(recoveries.too_often(), std::nullopt);
}

// It has fallen back: what the one before kept is gone again.
TEST(IdleRecoveries, OneThatBeginsEarlierKeepsNothing) {
  IdleRecoveries recoveries(kOptions);
  for (int i = 1; i <= 4; ++i) recoveries.count(10 - i, seconds(10 * i));
  EXPECT_EQ(recoveries.too_often(), "3 times in a row");
}

}  // namespace
}  // namespace poseidon::idle_recoveries_test
