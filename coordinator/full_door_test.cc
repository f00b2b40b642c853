#include "coordinator/full_door.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::full_door_test {
namespace {

using ::testing::HasSubstr;

constexpr Nanoseconds at(double seconds) {
  return Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

TEST(FullDoor, TellsOfRefusalsForAMinute) {
  FullDoor door;
  EXPECT_EQ(door.text(at(0)), "");
  door.look(0, at(1));
  EXPECT_EQ(door.text(at(1)), "");
  door.look(3, at(2));
  EXPECT_THAT(door.text(at(2)), HasSubstr("refuses connections (too_many)"));
  EXPECT_THAT(door.text(at(2)), HasSubstr("LimitNOFILE="));
  door.look(3, at(60));
  EXPECT_THAT(door.text(at(62)), HasSubstr("too_many"));
  EXPECT_EQ(door.text(at(62.1)), "") << "there was none since";
  door.look(4, at(100));
  EXPECT_THAT(door.text(at(160)), HasSubstr("too_many"));
}

}  // namespace
}  // namespace poseidon::full_door_test
