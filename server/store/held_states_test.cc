#include "server/store/held_states.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::held_states_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsNull;
using ::testing::NotNull;

constexpr Epoch kEpoch{5};

SnapshotId at(Iteration iteration) { return snapshot_id(kEpoch, iteration); }

class HeldStatesTest : public ::testing::Test {
 protected:
  HeldStatesTest() { states_.begin(kEpoch); }
  absl::Status hold(Iteration iteration) {
    return states_.hold(at(iteration), std::make_shared<const std::vector<float>>(
                                           2, static_cast<float>(iteration)));
  }

  HeldStates states_;
};

TEST_F(HeldStatesTest, KeepsTheNewestThree) {
  EXPECT_TRUE(states_.empty());
  for (Iteration i = 7; i <= 10; ++i) ASSERT_TRUE(hold(i).ok());
  EXPECT_EQ(states_.oldest(), 8);
  EXPECT_EQ(states_.newest(), 10);
  EXPECT_THAT(states_.find(at(7)), IsNull());
  ASSERT_THAT(states_.find(at(8)), NotNull());
  EXPECT_THAT(*states_.find(at(8)), ElementsAre(8, 8));
  EXPECT_THAT(states_.find(at(11)), IsNull());
}

TEST_F(HeldStatesTest, OneThatComesAgainChangesNothing) {
  for (const Iteration i : {7, 8, 8, 7, 6}) ASSERT_TRUE(hold(i).ok());
  EXPECT_EQ(states_.oldest(), 7);
  EXPECT_EQ(states_.newest(), 8);
}

TEST_F(HeldStatesTest, WhatIsBeforeAGapIsOfNoUse) {
  for (const Iteration i : {7, 8, 10}) ASSERT_TRUE(hold(i).ok());
  EXPECT_EQ(states_.oldest(), 10);
  EXPECT_EQ(states_.newest(), 10);
  EXPECT_THAT(states_.find(at(8)), IsNull());
}

TEST_F(HeldStatesTest, ANewEpochBeginsEmptyAndTakesNothingOfAnother) {
  ASSERT_TRUE(hold(7).ok());
  states_.begin(Epoch(6));
  EXPECT_TRUE(states_.empty());
  EXPECT_EQ(hold(8).code(), absl::StatusCode::kFailedPrecondition);
  states_.begin(Epoch(0));
  EXPECT_FALSE(states_.hold(snapshot_id(Epoch(6), 1), nullptr).ok()) << "no epoch is in force";
}

}  // namespace
}  // namespace poseidon::held_states_test
