#include "common/wire/fan_out.h"

#include <set>

#include "gtest/gtest.h"

namespace poseidon::fan_out_test {
namespace {

TEST(FanOutTest, EachServesAllOnceAndNoTwoBeginWithTheSame) {
  constexpr std::size_t kCount = 16;
  for (std::size_t turn = 0; turn < kCount; ++turn) {
    std::set<std::size_t> served;
    for (std::size_t sender = 0; sender < kCount; ++sender) {
      served.insert(receiver_in_turn(sender, turn, kCount));
    }
    EXPECT_EQ(served.size(), kCount) << "all busy in turn " << turn;
  }
  for (const std::size_t receivers : {1, 2, 3, 16}) {
    for (std::size_t sender = 0; sender < 5; ++sender) {
      std::set<std::size_t> served;
      for (std::size_t turn = 0; turn < receivers; ++turn) {
        served.insert(receiver_in_turn(sender, turn, receivers));
      }
      EXPECT_EQ(served.size(), receivers);
      EXPECT_LT(*served.rbegin(), receivers);
    }
  }
}

}  // namespace
}  // namespace poseidon::fan_out_test
