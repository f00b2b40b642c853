#include "coordinator/planning/node_counts.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::node_counts_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NodeCounts, WorkersAreThoseThatMembershipAllows) {
  const NodeLimits limits{.min_workers = 2, .max_workers = 4, .replicas = 1};
  for (const std::int64_t workers : {0, 2, 4}) {
    EXPECT_TRUE(check_node_counts(limits, workers, 1).ok()) << workers;
  }
  for (const std::int64_t workers : {1, 5}) {
    const absl::Status status = check_node_counts(limits, workers, 1);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << workers;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("workers are asked for, but the job allows 2 to 4"),
                      HasSubstr("membership.min_workers, membership.max_workers")));
  }
}

TEST(NodeCounts, CopiesNeedAsManyServers) {
  const NodeLimits limits{.min_workers = 1, .max_workers = 64, .replicas = 2};
  EXPECT_TRUE(check_node_counts(limits, 1, 2).ok());
  EXPECT_TRUE(check_node_counts(limits, 1, 0).ok()) << "nobody knows yet how many there will be";
  const absl::Status one = check_node_counts(limits, 1, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(one));
  EXPECT_THAT(std::string(one.message()), HasSubstr("checkpoint.replicas: 2 copies"));
}

}  // namespace
}  // namespace poseidon::node_counts_test
