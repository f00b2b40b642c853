#include "common/node/job_reports.h"

#include <limits>

#include "common/base/unreachable.h"
#include "gtest/gtest.h"

namespace poseidon::job_reports_test {
namespace {

constexpr Epoch kEpoch{7};

/// What the coordinator gets.
v1::NodeMessage sent(const v1::NodeMessage& message) {
  v1::NodeMessage received;
  EXPECT_TRUE(received.ParseFromString(message.SerializeAsString()));
  return received;
}

TEST(JobReportsTest, AFailureSaysWhatMayHelp) {
  struct Case {
    absl::StatusCode code;
    v1::Failure training, restoring;
  };
  for (const Case& c : {
           Case{absl::StatusCode::kUnavailable, v1::FAILURE_PEER, v1::FAILURE_PEER},
           Case{absl::StatusCode::kDeadlineExceeded, v1::FAILURE_PEER, v1::FAILURE_PEER},
           Case{absl::StatusCode::kAborted, v1::FAILURE_PEER, v1::FAILURE_PEER},
           Case{absl::StatusCode::kDataLoss, v1::FAILURE_JOB, v1::FAILURE_CHECKPOINT},
           Case{absl::StatusCode::kNotFound, v1::FAILURE_JOB, v1::FAILURE_CHECKPOINT},
           Case{absl::StatusCode::kInvalidArgument, v1::FAILURE_JOB, v1::FAILURE_JOB},
           Case{absl::StatusCode::kFailedPrecondition, v1::FAILURE_JOB, v1::FAILURE_JOB},
       }) {
    const absl::Status status(c.code, "why");
    const v1::NodeMessage training = sent(failed_message(kEpoch, status, /*restoring=*/false));
    EXPECT_EQ(training.failed().failure(), c.training) << status;
    EXPECT_EQ(training.failed().reason(), "why");
    EXPECT_EQ(training.failed().epoch(), 7);
    EXPECT_EQ(sent(failed_message(kEpoch, status, /*restoring=*/true)).failed().failure(),
              c.restoring)
        << status;
  }
}

TEST(JobReportsTest, AFailureNamesWhoDoesNotAnswer) {
  const absl::Status status = unreachable_error("10.0.0.4:4711", "server 1 could not be reached");
  const v1::NodeMessage failed = sent(failed_message(kEpoch, status, /*restoring=*/true));
  EXPECT_EQ(failed.failed().failure(), v1::FAILURE_PEER);
  EXPECT_EQ(failed.failed().unreachable(), "10.0.0.4:4711");
}

TEST(JobReportsTest, AReasonMayHoldAnyBytes) {
  const std::string reason = "image \xff\xfe.jpg: damaged";
  const v1::NodeMessage failed =
      sent(failed_message(kEpoch, absl::DataLossError(reason), /*restoring=*/false));
  EXPECT_NE(failed.failed().reason().find(".jpg: damaged"), std::string::npos);
  const v1::NodeMessage missing =
      sent(checkpoint_missing_message(kEpoch, 12, reason, MissingPart::kTooLate));
  EXPECT_NE(missing.checkpoint().reason().find(".jpg: damaged"), std::string::npos);
  EXPECT_EQ(missing.checkpoint().iteration(), 12);
  EXPECT_TRUE(missing.checkpoint().too_late());
  EXPECT_FALSE(missing.checkpoint().stored());
}

TEST(JobReportsTest, FiguresArriveAsTheyAre) {
  const v1::NodeMessage iteration = sent(iteration_message(kEpoch, 1LL << 40, 0.1));
  EXPECT_EQ(iteration.iteration().epoch(), 7);
  EXPECT_EQ(iteration.iteration().iteration(), 1ULL << 40);
  EXPECT_EQ(iteration.iteration().loss(), 0.1);
  const v1::NodeMessage test = sent(test_message(kEpoch, 100, 2.5, 3, 4));
  EXPECT_EQ(test.test().iteration(), 100);
  EXPECT_EQ(test.test().loss_sum(), 2.5);
  EXPECT_EQ(test.test().correct(), 3);
  EXPECT_EQ(test.test().samples(), 4);
  const v1::NodeMessage halted =
      sent(halted_message(kEpoch, 0, std::numeric_limits<Iteration>::max()));
  EXPECT_EQ(halted.halted().oldest(), 0);
  EXPECT_EQ(halted.halted().newest(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(sent(ready_message(kEpoch)).ready().epoch(), 7);
  EXPECT_EQ(data_identity_of(sent(ready_message(kEpoch)).ready()), std::nullopt);
  const DataIdentity data{.train = {.samples = 5, .digest = 6}, .test = std::nullopt};
  EXPECT_EQ(data_identity_of(sent(ready_message(kEpoch, data)).ready()), data);
  EXPECT_EQ(sent(finished_message(kEpoch)).finished().epoch(), 7);
}

}  // namespace
}  // namespace poseidon::job_reports_test
