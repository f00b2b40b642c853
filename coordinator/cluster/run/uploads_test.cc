#include "coordinator/cluster/run/uploads.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::uploads_test {
namespace {

using ::testing::HasSubstr;

Plan small_plan() {
  Plan plan;
  plan.layers.emplace_back();
  plan.layers.back().parameters = 1000;
  return plan;
}

TEST(UploadsTest, OneUploadOfAnEpochAtATime) {
  Uploads uploads;
  const Plan plan = small_plan();
  ASSERT_TRUE(uploads.begin(3, 4000, plan).ok());
  EXPECT_TRUE(absl::IsUnavailable(uploads.begin(3, 4000, plan)));
  EXPECT_TRUE(absl::IsUnavailable(uploads.begin(2, 4000, plan))) << "an older epoch";
  EXPECT_TRUE(uploads.begin(4, 4000, plan).ok()) << "a newer epoch does not wait";
  EXPECT_FALSE(uploads.end(3, absl::OkStatus()));
  EXPECT_TRUE(absl::IsUnavailable(uploads.begin(4, 4000, plan))) << "epoch 4 still has its place";
  EXPECT_FALSE(uploads.end(4, absl::OkStatus()));
  EXPECT_TRUE(uploads.begin(4, 4000, plan).ok());
}

TEST(UploadsTest, AModelLargerThanThePlanAllowsTakesNoPlace) {
  Uploads uploads;
  const Plan plan = small_plan();
  const std::uint64_t limit = 8000 + (64 << 20);
  EXPECT_TRUE(absl::IsInvalidArgument(uploads.begin(1, limit + 1, plan)));
  EXPECT_TRUE(uploads.begin(1, limit, plan).ok());
}

TEST(UploadsTest, TheDisksRefusalIsReportedOncePerReason) {
  Uploads uploads;
  const absl::Status full = worth_another_try(absl::ResourceExhaustedError("disk full"));
  EXPECT_TRUE(absl::IsUnavailable(full));
  const std::optional<std::string> alarm = uploads.end(1, full);
  ASSERT_TRUE(alarm);
  EXPECT_THAT(*alarm, HasSubstr("disk full; worker 0 keeps it"));
  EXPECT_EQ(uploads.retry_text(), *alarm);
  EXPECT_FALSE(uploads.end(1, full)) << "the same reason";
  EXPECT_TRUE(uploads.end(1, absl::UnavailableError("folder gone")));
  EXPECT_FALSE(uploads.end(1, absl::OkStatus()));
  EXPECT_EQ(uploads.retry_text(), "");
}

TEST(UploadsTest, AnErrorOfTheSenderIsNotRetried) {
  const absl::Status wrong = absl::InvalidArgumentError("too long");
  EXPECT_EQ(worth_another_try(wrong), wrong);
  Uploads uploads;
  EXPECT_FALSE(uploads.end(1, wrong));
  EXPECT_EQ(uploads.retry_text(), "");
}

}  // namespace
}  // namespace poseidon::uploads_test
