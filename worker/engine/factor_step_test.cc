// Stepping a fully connected layer from all workers' factors: against plain loops, against the
// gradient that backward gives, and the same bits with any number of threads.

#include <memory>
#include <string>
#include <vector>

#include "common/tensor/scan.h"
#include "gmock/gmock.h"
#include "models/net/initialise.h"
#include "tests/support/factor_checks.h"
#include "tests/support/layer_harness.h"
#include "tests/twins/reference_device/reference_device.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/executor/network_executor.h"

namespace poseidon::factor_step_test {
namespace {

using testing::all_near;
using testing::factor_problems;
using testing::FactorProblem;
using testing::FactorResult;
using testing::measure_first;
using testing::step_twice;
using testing::values;

TEST(FactorStep, AgreesWithPlainLoops) {
  const auto reference = make_reference_device();
  const auto cpu = make_cpu_device(2);
  for (const FactorProblem& p : factor_problems()) {
    SCOPED_TRACE(p.name());
    const FactorResult wanted = step_twice(*reference, p);
    const FactorResult got = step_twice(*cpu, p);
    const double tolerance = testing::factor_tolerance(p);
    EXPECT_TRUE(all_near(got.parameters, wanted.parameters, tolerance));
    EXPECT_TRUE(all_near(got.state0, wanted.state0, tolerance));
  }
}

TEST(FactorStep, TheNumberOfThreadsChangesNoBit) {
  for (const FactorProblem& p : factor_problems()) {
    const FactorResult one = step_twice(*make_cpu_device(1), p);
    for (const int threads : {2, 3, 5, 16}) {
      EXPECT_TRUE(step_twice(*make_cpu_device(threads), p) == one)
          << threads << " threads, " << p.name();
    }
  }
}

NetSpec two_layers() {
  const auto net = parse_network(nlohmann::json::parse(R"({
    "name": "two", "input": [2, 4, 3], "layers": [
      {"name": "fc1", "type": "fully_connected", "outputs": 70},
      {"name": "relu1", "type": "relu"},
      {"name": "fc2", "type": "fully_connected", "outputs": 5},
      {"name": "loss", "type": "softmax_cross_entropy"}]})"));
  EXPECT_TRUE(net.ok()) << net.status();
  return *net;
}

std::unique_ptr<Executor> executor_on(std::unique_ptr<Device> device) {
  auto executor = NetworkExecutor::create(two_layers(), {.batch_size = 6}, std::move(device));
  EXPECT_TRUE(executor.ok()) << executor.status();
  initialise_parameters((*executor)->net(), 3,
                        [&](LayerIndex layer) { return (*executor)->parameters(layer); });
  return *std::move(executor);
}

void forward_and_backward(Executor& executor) {
  Batch batch;
  batch.samples = batch.valid_samples = 6;
  batch.images = values(5, 6 * 24);
  batch.labels = {0, 1, 2, 3, 4, 0};
  ASSERT_TRUE(executor.forward(batch, Phase::kTrain, {}).ok());
  ASSERT_TRUE(executor.backward({}).ok());
}

TEST(FactorStep, FactorsOfAnExecutorStandForItsGradients) {
  for (const bool cpu : {true, false}) {
    const auto device = [cpu] { return cpu ? make_cpu_device(2) : make_reference_device(); };
    const auto plain = executor_on(device());
    const auto ours = executor_on(device());
    forward_and_backward(*plain);
    for (std::uint32_t l = 0; l < 2; ++l) ASSERT_TRUE(ours->keep_factors(LayerIndex(l), 0).ok());
    forward_and_backward(*ours);
    OptimizerSpec sgd;
    sgd.learning_rate = 1.0;
    const std::int64_t sizes[2][2] = {{70, 24}, {5, 70}};
    for (std::uint32_t l = 0; l < 2; ++l) {
      const LayerIndex layer(l);
      EXPECT_TRUE(ours->gradients(layer).empty()) << "its memory is given back";
      std::vector<float> gradient(static_cast<std::size_t>(6 * sizes[l][0]));
      std::vector<float> input(static_cast<std::size_t>(6 * sizes[l][1]));
      ASSERT_TRUE(ours->copy_factors(layer, gradient, input).ok());
      ASSERT_TRUE(ours->step_from_factors(layer, {.output_gradients = gradient,
                                                  .inputs = input,
                                                  .weight_step = make_optimizer_step(sgd, 0, 1.0f),
                                                  .bias_step = make_optimizer_step(sgd, 0, 1.0f)})
                      .ok());
      std::vector<float> expected;
      for (std::size_t e = 0; e < plain->parameters(layer).size(); ++e) {
        expected.push_back(plain->parameters(layer)[e] - plain->gradients(layer)[e]);
      }
      ASSERT_TRUE(ours->fetch_parameters(layer).ok());
      const auto stepped = ours->parameters(layer);
      EXPECT_TRUE(all_near({stepped.begin(), stepped.end()}, expected, 1e-6));
    }
  }
}

TEST(FactorStep, MeasuresTheGradientThatItSteps) {
  for (const FactorProblem& p : factor_problems()) {
    SCOPED_TRACE(p.name());
    const FactorSquares one = measure_first(*make_cpu_device(1), p);
    const FactorSquares three = measure_first(*make_cpu_device(3), p);
    const FactorSquares reference = measure_first(*make_reference_device(), p);
    EXPECT_EQ(one.weight, three.weight) << "no bit depends on the threads";
    EXPECT_EQ(one.bias, three.bias);
    const double tolerance = testing::square_tolerance(p);
    EXPECT_NEAR(one.weight, reference.weight, tolerance * reference.weight + 1e-12);
    EXPECT_NEAR(one.bias, reference.bias, tolerance * reference.bias + 1e-12);
    EXPECT_EQ(reference.bias > 0.0, p.has_bias);
  }
}

TEST(FactorStep, MeasuresValuesWhereTheyAre) {
  for (const std::int64_t size : {1, 8, 1001}) {
    const std::vector<float> some = values(3, size);
    const double one = testing::measure_values(*make_cpu_device(1), some);
    EXPECT_EQ(one, testing::measure_values(*make_cpu_device(3), some));
    EXPECT_EQ(one, testing::measure_values(*make_reference_device(), some));
    EXPECT_EQ(one, square_sum(some)) << "the definition that replicas agree on";
  }
}

TEST(FactorStep, OnlyFullyConnectedLayersHaveFactors) {
  const auto net = parse_network(nlohmann::json::parse(R"({
    "name": "conv", "input": [1, 6, 6], "layers": [
      {"name": "conv1", "type": "convolution", "outputs": 2, "kernel": 3},
      {"name": "fc", "type": "fully_connected", "outputs": 5},
      {"name": "loss", "type": "softmax_cross_entropy"}]})"));
  ASSERT_TRUE(net.ok());
  auto executor = NetworkExecutor::create(*net, {.batch_size = 2}, make_cpu_device(1));
  const absl::Status status = (*executor)->keep_factors(LayerIndex(0), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("conv1"));
  EXPECT_TRUE((*executor)->keep_factors(LayerIndex(1), 0).ok());
}

}  // namespace
}  // namespace poseidon::factor_step_test
