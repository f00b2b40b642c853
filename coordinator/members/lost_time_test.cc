#include "coordinator/members/lost_time.h"

#include "gtest/gtest.h"

namespace poseidon::lost_time_test {
namespace {

constexpr Nanoseconds s(std::int64_t seconds) { return std::chrono::seconds(seconds); }

TEST(LostTimeTest, TheFirstLookAndShortPausesLoseNothing) {
  LostTime lost(s(5));
  EXPECT_EQ(lost.look(s(100), std::nullopt), s(0));
  EXPECT_EQ(lost.look(s(105), std::nullopt), s(0));
  EXPECT_FALSE(lost.is_cut_off());
}

TEST(LostTimeTest, APauseLongerThanALeaseIsLostAsAWhole) {
  LostTime lost(s(5));
  (void)lost.look(s(100), std::nullopt);
  EXPECT_EQ(lost.look(s(106), std::nullopt), s(6));
  EXPECT_EQ(lost.look(s(107), std::nullopt), s(0));
}

TEST(LostTimeTest, TimeCutOffIsCountedOnceUpToTheFirstLookThatHearsSomebody) {
  LostTime lost(s(5));
  (void)lost.look(s(100), std::nullopt);
  (void)lost.look(s(104), std::nullopt);
  EXPECT_EQ(lost.look(s(106), s(101)), s(5));
  EXPECT_TRUE(lost.is_cut_off());
  EXPECT_EQ(lost.look(s(107), s(101)), s(1));
  EXPECT_EQ(lost.look(s(109), std::nullopt), s(2));
  EXPECT_FALSE(lost.is_cut_off());
  EXPECT_EQ(lost.look(s(110), std::nullopt), s(0));
}

TEST(LostTimeTest, APauseWithinIsolationIsNotCountedTwice) {
  LostTime lost(s(5));
  (void)lost.look(s(100), std::nullopt);
  EXPECT_EQ(lost.look(s(120), s(110)), s(20));
  EXPECT_EQ(lost.look(s(140), s(110)), s(20));
}

}  // namespace
}  // namespace poseidon::lost_time_test
