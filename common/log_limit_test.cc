#include "common/log_limit.h"

#include <string>

#include "gtest/gtest.h"

namespace poseidon {
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

TEST(LogLimit, RemembersABoundedNumberOfKinds) {
  LogLimit limit({.burst = 1, .interval = seconds(1000), .max_kinds = 2});
  EXPECT_EQ(limit.admit("a", seconds(1)), 0u);
  EXPECT_EQ(limit.admit("b", seconds(2)), 0u);
  EXPECT_EQ(limit.admit("c", seconds(3)), 0u) << "a is forgotten";
  EXPECT_EQ(limit.admit("b", seconds(4)), std::nullopt);
  EXPECT_EQ(limit.admit("a", seconds(5)), 0u) << "so it is new again";
}

TEST(LogLimit, AClockThatGoesBackDoesNoHarm) {
  LogLimit limit({.burst = 1, .interval = seconds(1), .max_kinds = 2});
  EXPECT_EQ(limit.admit("a", seconds(10)), 0u);
  EXPECT_EQ(limit.admit("a", seconds(5)), std::nullopt);
  EXPECT_EQ(limit.admit("a", seconds(7)), 1u);
}

}  // namespace
}  // namespace poseidon
