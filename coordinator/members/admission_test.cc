#include "coordinator/members/admission.h"

#include "common/base/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::admission_test {
namespace {

TEST(OneLine, HasNoControlCharactersAndABound) {
  EXPECT_EQ(one_line("a\nb\tc\x1b[31m\x7f"), "a b c [31m ");
  const std::string line = one_line(std::string(5000, 'x'));
  EXPECT_EQ(line.size(), 2004u);
  EXPECT_EQ(line.substr(1999), "x ...");
}

TEST(OneLine, CutsThroughNoLetter) {
  // What protobuf took as a string goes into other messages, whose readers take no half letters: a
  // node could make every answer to `poseidon status` unreadable.
  for (std::size_t before = 1990; before < 2005; ++before) {
    const std::string text = std::string(before, 'x') + "\u00e4\u20ac\U0001F600\u00e4\u00e4\u00e4";
    EXPECT_NO_THROW((void)nlohmann::json(one_line(text)).dump()) << before;
  }
}

TEST(Admission, ANewestEpochIsAServersAndFits) {
  v1::Join join;
  join.set_protocol_version(kProtocolVersion);
  join.set_role(v1::NODE_ROLE_SERVER);
  join.set_address("10.0.0.1:4711");
  join.set_newest_epoch(17);
  join.set_machine(42);
  const absl::StatusOr<NodeInfo> node = admit(join, "10.0.0.1");
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(node->newest_epoch, Epoch(17));
  EXPECT_EQ(node->machine, 42u);
  for (const std::uint64_t much : {std::uint64_t{1} << 24, ~std::uint64_t{0}}) {
    join.set_newest_epoch(much);
    const absl::Status status = admit(join, "10.0.0.1").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("--data-dir"));
  }
  join.set_role(v1::NODE_ROLE_WORKER);
  EXPECT_EQ(admit(join, "10.0.0.1")->newest_epoch, Epoch(0));
}

TEST(Admission, OnlyAWorkerServesOneJobAndHasARankThere) {
  v1::Join join;
  join.set_protocol_version(kProtocolVersion);
  join.set_role(v1::NODE_ROLE_WORKER);
  join.set_job("gpt-7");
  absl::StatusOr<NodeInfo> node = admit(join, "10.0.0.1");
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(node->job, "gpt-7");
  EXPECT_EQ(node->rank, std::nullopt);
  join.set_rank(3);
  node = admit(join, "10.0.0.1");
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(node->rank, WorkerRank(2));
  join.set_job("gpt\n7");
  EXPECT_TRUE(absl::IsInvalidArgument(admit(join, "10.0.0.1").status()));
  join.set_job("");
  EXPECT_THAT(admit(join, "10.0.0.1").status().message(), ::testing::HasSubstr("without Join.job"));
  join.set_job("gpt-7");
  join.set_role(v1::NODE_ROLE_SERVER);
  join.set_address("10.0.0.1:4711");
  EXPECT_THAT(admit(join, "10.0.0.1").status().message(), ::testing::HasSubstr("only workers"));
}

TEST(Admission, ALoopbackAddressIsForNodesOfTheCoordinatorsMachine) {
  v1::Join join;
  join.set_protocol_version(kProtocolVersion);
  for (const auto role : {v1::NODE_ROLE_SERVER, v1::NODE_ROLE_WORKER}) {
    join.set_role(role);
    for (const char* address : {"127.0.0.1:4701", "127.0.1.1:4701", "[::1]:4701", "localhost:4701",
                                "[::ffff:127.0.0.1]:4701"}) {
      join.set_address(address);
      join.set_metrics_address("127.0.0.1:9461");
      const absl::Status status = admit(join, "10.0.0.7").status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << address;
      EXPECT_THAT(std::string(status.message()),
                  ::testing::AllOf(
                      ::testing::HasSubstr(address), ::testing::HasSubstr("sees it at 10.0.0.7"),
                      ::testing::HasSubstr("--listen"), ::testing::HasSubstr("0.0.0.0:4701")));
      EXPECT_TRUE(admit(join, "127.0.0.1").ok()) << address;
    }
    join.set_address("127.0.0.2:4701");
    EXPECT_EQ(admit(join, "127.0.0.1")->address, "127.0.0.2:4701");
    join.set_address("0.0.0.0:4701");
    EXPECT_EQ(admit(join, "10.0.0.7")->address, "10.0.0.7:4701");
  }
}

}  // namespace
}  // namespace poseidon::admission_test
