#include "coordinator/job/reports/training_pace.h"

#include "gtest/gtest.h"

namespace poseidon::training_pace_test {
namespace {

Nanoseconds at(double s) { return Nanoseconds(static_cast<std::int64_t>(s * 1e9)); }

TEST(TrainingPace, CountsFromTheFirstEpochOn) {
  TrainingPace pace;
  EXPECT_FALSE(pace.has_begun());
  EXPECT_EQ(pace.seconds_until(at(5)), 0.0);
  pace.begin_epoch(at(10), 4);
  EXPECT_EQ(pace.iterated_seconds(), 0.0);
  EXPECT_EQ(pace.on_iteration(at(12), 64), 32.0);
  pace.begin_epoch(at(20), 5);  // after a recovery
  EXPECT_EQ(pace.on_iteration(at(21), 64), 64.0) << "the standstill before it is none of its own";
  EXPECT_EQ(pace.first(), 4);
  EXPECT_EQ(pace.seconds_until(at(25)), 15.0);
  EXPECT_EQ(pace.iterated_seconds(), 11.0) << "it stands still with the iterations";
}

TEST(TrainingPace, WhatIsToldLateHasTheSpeedAtWhichItWasMade) {
  TrainingPace pace;
  pace.go_on(at(80), at(100), 0);
  EXPECT_EQ(pace.iterated_seconds(), 20.0) << "as far as is known";
  EXPECT_EQ(pace.on_iteration(at(84), 64), 16.0);
  EXPECT_EQ(pace.on_iteration(at(88), 128), 16.0);
  EXPECT_EQ(pace.iterated_seconds(), 8.0);
  EXPECT_EQ(pace.on_iteration(at(70), 192), 0.0) << "before the beginning is none";
}

}  // namespace
}  // namespace poseidon::training_pace_test
