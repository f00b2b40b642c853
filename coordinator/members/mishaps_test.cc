#include "coordinator/members/mishaps.h"

#include "gtest/gtest.h"

namespace poseidon::mishaps_test {
namespace {

using std::chrono::seconds;

NodeInfo worker_at(std::string host) {
  return {.role = NodeRole::kWorker, .device = "cpu", .peer_host = std::move(host)};
}

class MishapsTest : public ::testing::Test {
 protected:
  /// How long nodes of that machine are not taken, after one more mishap.
  int pause_after_one(bool needed = false) {
    now_ += std::chrono::hours(2);
    mishaps_.count(worker_at("a"), Nanoseconds{0}, now_);
    int pause = 0;
    while (!mishaps_.may_try(worker_at("a"), needed, now_ + seconds(pause))) ++pause;
    return pause;
  }

  Nanoseconds now_{0};
  Mishaps mishaps_{MishapOptions{.first_pause = seconds(10), .longest_doubled_pause = seconds(35)}};
};

TEST_F(MishapsTest, PausesDoubleFromTheSecondOn) {
  EXPECT_FALSE(mishaps_.knows(worker_at("a")));
  EXPECT_TRUE(mishaps_.may_try(worker_at("a"), /*needed=*/false, now_));
  EXPECT_EQ(pause_after_one(), 0);
  EXPECT_TRUE(mishaps_.knows(worker_at("a")));
  EXPECT_EQ(pause_after_one(), 10);
  EXPECT_EQ(pause_after_one(), 20);
  EXPECT_EQ(pause_after_one(), 35);
  EXPECT_EQ(pause_after_one(), 35);
}

TEST_F(MishapsTest, WhoIsNeededWaitsNoLongerThanTheFirstPause) {
  for (int i = 0; i < 4; ++i) pause_after_one();
  EXPECT_EQ(pause_after_one(/*needed=*/true), 10);
}

TEST_F(MishapsTest, WhatItCostTheOthersCounts) {
  mishaps_.count(worker_at("a"), seconds(10), now_);
  EXPECT_TRUE(mishaps_.may_try(worker_at("a"), false, now_)) << "no longer than a pause";
  mishaps_.forget(worker_at("a"));
  mishaps_.count(worker_at("a"), seconds(11), now_);
  EXPECT_FALSE(mishaps_.may_try(worker_at("a"), false, now_ + seconds(50 * 11 - 1)))
      << "even the first, and beyond the longest pause";
  EXPECT_TRUE(mishaps_.may_try(worker_at("a"), false, now_ + seconds(50 * 11)));
}

TEST_F(MishapsTest, OnlyWhoComesFromThereIsMeant) {
  for (int i = 0; i < 3; ++i) pause_after_one();
  NodeInfo same = worker_at("a");
  same.process_id = 4711;
  EXPECT_FALSE(mishaps_.may_try(same, false, now_));
  NodeInfo gpu = worker_at("a");
  gpu.device = "NVIDIA H100";
  NodeInfo server = worker_at("a");
  server.role = NodeRole::kServer;
  for (const NodeInfo& other : {worker_at("b"), gpu, server}) {
    EXPECT_FALSE(mishaps_.knows(other));
    EXPECT_TRUE(mishaps_.may_try(other, false, now_));
  }
}

TEST_F(MishapsTest, WhoHasShownWhatItCanDoBeginsAnew) {
  for (int i = 0; i < 3; ++i) pause_after_one();
  mishaps_.forget(worker_at("a"));
  EXPECT_TRUE(mishaps_.may_try(worker_at("a"), false, now_));
  EXPECT_EQ(pause_after_one(), 0);
}

}  // namespace
}  // namespace poseidon::mishaps_test
