#include "coordinator/records/disk_request.h"

#include "gtest/gtest.h"

namespace poseidon::disk_request_test {
namespace {

constexpr Nanoseconds at(int s) { return std::chrono::seconds(s); }

TEST(DiskRequest, IsAskedForOneAtATimeAndAgainAfterAPause) {
  DiskRequest request;
  EXPECT_FALSE(request.answer()) << "of somebody else";
  EXPECT_TRUE(request.is_due(at(10)));
  request.ask(at(10));
  EXPECT_FALSE(request.is_due(at(100)));
  EXPECT_EQ(request.waited(at(14)), at(4));
  request.extend_deadlines(at(3), at(14));
  EXPECT_EQ(request.waited(at(14)), at(1));
  EXPECT_TRUE(request.answer());
  EXPECT_TRUE(request.refused("disk full", at(20)));
  EXPECT_FALSE(request.is_due(at(22)));
  EXPECT_TRUE(request.is_due(at(23)));
  request.ask(at(23));
  EXPECT_FALSE(request.refused("disk full", at(24))) << "no news";
  EXPECT_EQ(request.why(), "disk full");
  request.granted();
  EXPECT_EQ(request.why(), "");
}

}  // namespace
}  // namespace poseidon::disk_request_test
