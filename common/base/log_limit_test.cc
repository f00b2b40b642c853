#include "common/base/log_limit.h"

#include <string>

#include "gtest/gtest.h"

namespace poseidon::log_limit_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(LogLimit, ABurstPassesThenOnePerInterval) {
  LogLimit limit({.burst = 3, .interval = seconds(1), .max_kinds = 8});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.admit("it broke", Nanoseconds(i)), 0u) << i;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(limit.admit("it broke", milliseconds(i)), std::nullopt);
  EXPECT_EQ(limit.admit("it broke", milliseconds(1100)), 5u) << "and tells what was left out";
  EXPECT_EQ(limit.admit("it broke", milliseconds(1200)), std::nullopt);
  EXPECT_EQ(limit.admit("it broke", seconds(100)), 1u);
  EXPECT_EQ(limit.admit("it broke", seconds(100)), 0u) << "a pause gives the burst back";
}

TEST(LogLimit, DigitsMakeNoOtherLine) {
  LogLimit limit({.burst = 1, .interval = seconds(1), .max_kinds = 8});
  EXPECT_EQ(limit.admit("refused chunk 17 of rank 3", seconds(0)), 0u);
  EXPECT_EQ(limit.admit("refused chunk 9 of rank 12", seconds(0)), std::nullopt);
  EXPECT_EQ(limit.admit("refused layer 17 of rank 3", seconds(0)), 0u);
}

TEST(LogLimit, WhatIsQuotedMakesNoOtherLine) {
  LogLimit limit({.burst = 1, .interval = seconds(1), .max_kinds = 8});
  EXPECT_EQ(limit.admit(R"(refused "CN=abc" (unknown))", seconds(0)), 0u);
  EXPECT_EQ(limit.admit(R"(refused "CN=x\"y\\" (unknown))", seconds(0)), std::nullopt);
  EXPECT_EQ(limit.admit(R"(refused "CN=abc" (expired))", seconds(0)), 0u);
  EXPECT_EQ(limit.admit(R"(refused "CN=never closed (expired))", seconds(0)), 0u);
}

TEST(LogLimit, TooManyKindsShareOne) {
  LogLimit limit({.burst = 2, .interval = seconds(10), .max_kinds = 2});
  EXPECT_EQ(limit.admit("a", seconds(1)), 0u);
  EXPECT_EQ(limit.admit("b", seconds(2)), 0u);
  EXPECT_EQ(limit.admit("c", seconds(3)), 0u);
  EXPECT_EQ(limit.admit("d", seconds(4)), 0u);
  EXPECT_EQ(limit.admit("e", seconds(5)), std::nullopt) << "one of those that came too many";
  EXPECT_EQ(limit.admit("b", seconds(6)), 0u) << "which takes nothing from others";
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(limit.admit("e", seconds(60)), 0u) << "the others were silent: there is room";
  }
  EXPECT_EQ(limit.admit("e", seconds(60)), std::nullopt);
  EXPECT_EQ(limit.admit("a", seconds(60)), 0u);
}

TEST(LogLimit, AClockThatGoesBackDoesNoHarm) {
  LogLimit limit({.burst = 1, .interval = seconds(1), .max_kinds = 2});
  EXPECT_EQ(limit.admit("a", seconds(10)), 0u);
  EXPECT_EQ(limit.admit("a", seconds(5)), std::nullopt);
  EXPECT_EQ(limit.admit("a", seconds(7)), 1u);
}

}  // namespace
}  // namespace poseidon::log_limit_test
