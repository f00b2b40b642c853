#include "common/base/unreachable.h"

#include "gtest/gtest.h"

namespace poseidon::unreachable_test {
namespace {

TEST(UnreachableTest, TheAddressGoesWithTheFailure) {
  const absl::Status status = unreachable_error("a-host.of-some-length:4711", "it is silent");
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "it is silent");
  EXPECT_EQ(unreachable_address(status), "a-host.of-some-length:4711");
  const absl::Status again = reworded(status, "checkpoint 7: it is silent");
  EXPECT_TRUE(absl::IsUnavailable(again));
  EXPECT_EQ(again.message(), "checkpoint 7: it is silent");
  EXPECT_EQ(unreachable_address(again), "a-host.of-some-length:4711");
}

TEST(UnreachableTest, OtherFailuresNameNobody) {
  EXPECT_EQ(unreachable_address(absl::OkStatus()), "");
  const absl::Status lost = reworded(absl::DataLossError("torn"), "checkpoint 7: torn");
  EXPECT_TRUE(absl::IsDataLoss(lost));
  EXPECT_EQ(lost.message(), "checkpoint 7: torn");
  EXPECT_EQ(unreachable_address(lost), "");
}

}  // namespace
}  // namespace poseidon::unreachable_test
