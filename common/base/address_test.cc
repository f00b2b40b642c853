#include "common/base/address.h"

#include "gmock/gmock.h"

namespace poseidon::address_test {
namespace {

TEST(Address, TheSameHostIsTheSameMachine) {
  EXPECT_EQ(host_of("[::1]:4702"), "[::1]");
  EXPECT_TRUE(same_machine("10.0.0.1:4702", "10.0.0.1:4703"));
  EXPECT_FALSE(same_machine("10.0.0.1:4702", "10.0.0.2:4702"));
  EXPECT_FALSE(same_machine("", "")) << "whoever has no address may be anywhere";
  EXPECT_THAT(machine_numbers({"a:1", "b:1", "", "a:2", "", "[::1]:1"}),
              ::testing::ElementsAre(0, 1, 2, 0, 3, 4));
}

}  // namespace
}  // namespace poseidon::address_test
