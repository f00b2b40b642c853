#include "cli/commands/drain_command.h"

#include "gtest/gtest.h"

namespace poseidon::drain_command_test {
namespace {

TEST(StateOfNode, IsThatOfTheMemberWithThisId) {
  v1::GetStatusResponse status;
  v1::NodeStatus& worker = *status.add_workers();
  worker.set_node_id(3);
  worker.set_state("running");
  v1::NodeStatus& server = *status.add_servers();
  server.set_node_id(4);
  server.set_state("draining");
  EXPECT_EQ(state_of_node(status, 3), "running");
  EXPECT_EQ(state_of_node(status, 4), "draining");
  EXPECT_EQ(state_of_node(status, 5), "") << "another process at the same address";
}

}  // namespace
}  // namespace poseidon::drain_command_test
