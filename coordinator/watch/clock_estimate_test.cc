#include "coordinator/watch/clock_estimate.h"

#include <random>

#include "gtest/gtest.h"

namespace poseidon::clock_estimate_test {
namespace {

ClockSample sample_of(Nanoseconds offset, Nanoseconds there, Nanoseconds thinks, Nanoseconds back) {
  const Nanoseconds asked(10'000'000'000);
  const Nanoseconds received = asked + there;
  return {.asked = asked,
          .received = received + offset,
          .sent = received + thinks + offset,
          .answered = received + thinks + back};
}

TEST(ClockOffset, EqualWaysGiveItExactly) {
  for (const Nanoseconds offset : {Nanoseconds(0), Nanoseconds(-5'000'000'000), Nanoseconds(77)}) {
    const auto found =
        clock_offset(sample_of(offset, Nanoseconds(40), Nanoseconds(1000), Nanoseconds(40)));
    ASSERT_TRUE(found);
    EXPECT_EQ(found->offset, offset);
    EXPECT_EQ(found->error, Nanoseconds(40));
  }
}

TEST(ClockOffset, IsNeverFurtherOffThanItSays) {
  std::mt19937_64 random(1);
  std::uniform_int_distribution<Nanoseconds::rep> time(0, 1'000'000);
  for (int i = 0; i < 10'000; ++i) {
    const Nanoseconds offset(time(random) - 500'000);
    const auto found = clock_offset(sample_of(
        offset, Nanoseconds(time(random)), Nanoseconds(time(random)), Nanoseconds(time(random))));
    ASSERT_TRUE(found);
    EXPECT_LE(std::chrono::abs(found->offset - offset), found->error + Nanoseconds(1));
  }
}

TEST(ClockOffset, WhatContradictsItselfIsNotUsed) {
  EXPECT_FALSE(clock_offset({.asked = Nanoseconds(10),
                             .received = Nanoseconds(0),
                             .sent = Nanoseconds(9),
                             .answered = Nanoseconds(15)}));
  EXPECT_FALSE(clock_offset({.asked = Nanoseconds(10),
                             .received = Nanoseconds(5),
                             .sent = Nanoseconds(4),
                             .answered = Nanoseconds(15)}));
}

TEST(ClockOffset, TimesThatNoMachineHasAreNotUsed) {
  for (const Nanoseconds nonsense : {Nanoseconds::max(), Nanoseconds::min(), Nanoseconds(-1)}) {
    EXPECT_FALSE(clock_offset({.asked = Nanoseconds(10),
                               .received = nonsense,
                               .sent = nonsense,
                               .answered = Nanoseconds(15)}));
  }
}

TEST(ClockEstimate, TakesTheShortestWay) {
  ClockEstimate estimate;
  EXPECT_EQ(estimate.count(), 0U);
  const Nanoseconds offset(500);
  estimate.add(sample_of(offset, Nanoseconds(900), Nanoseconds(0), Nanoseconds(100)));
  EXPECT_EQ(estimate.best().offset, offset + Nanoseconds(400));
  estimate.add(sample_of(offset, Nanoseconds(30), Nanoseconds(0), Nanoseconds(10)));
  estimate.add(sample_of(offset, Nanoseconds(0), Nanoseconds(0), Nanoseconds(2000)));
  EXPECT_EQ(estimate.count(), 3U);
  EXPECT_EQ(estimate.best().offset, offset + Nanoseconds(10));
  EXPECT_EQ(estimate.best().error, Nanoseconds(20));
}

}  // namespace
}  // namespace poseidon::clock_estimate_test
