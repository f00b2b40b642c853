#include "worker/executor_factors.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/engine/cpu/cpu_device.h"

namespace poseidon::executor_factors_test {
namespace {

using ::testing::HasSubstr;

// The stacks alone are more than any machine has: said in words, not by the end of the process.
TEST(ExecutorFactors, MoreThanTheMachineHasIsRefused) {
  const NetSpec net = *parse_network(nlohmann::json::parse(R"({
      "name": "small", "input": [8], "layers": [
        {"name": "fc", "type": "fully_connected", "outputs": 4},
        {"name": "loss", "type": "softmax_cross_entropy"}]})"));
  const std::shared_ptr<Executor> executor = *make_cpu_executor(net, {.batch_size = 2});
  Plan plan;
  plan.worker_addresses.resize(8);
  PlanLayer& layer = plan.layers.emplace_back();
  layer.name = "fc";
  layer.shape = {4, 8};
  layer.parameters = 36;
  layer.scheme = Scheme::kSfb;
  plan.batch_size = 2;
  EXPECT_TRUE(ExecutorFactors::create(executor, plan, {}, 1).ok());
  plan.batch_size = std::int64_t{1} << 40;  // 8 workers x 12 x 2 x 4 bytes each
  const absl::Status refused = ExecutorFactors::create(executor, plan, {}, 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  const std::string message(refused.message());
  EXPECT_THAT(message, HasSubstr("8 workers exchange need 805306368 MiB"));
  EXPECT_THAT(message, HasSubstr("batch_size"));
  EXPECT_THAT(message, HasSubstr("sync.scheme"));
}

}  // namespace
}  // namespace poseidon::executor_factors_test
