// Stepping a fully connected layer from everybody's factors: against plain loops, against the
// gradient that backward gives, and the same bits with any number of threads.

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "gmock/gmock.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/layer_harness.h"
#include "worker/engine/network_executor.h"
#include "worker/engine/reference/reference_device.h"

namespace poseidon {
namespace {

using testing::all_near;
using testing::values;

struct Problem {
  std::int64_t rows, outputs, inputs;
  bool has_bias;
  OptimizerSpec optimizer;
};

struct Result {
  std::vector<float> parameters, state0, state1;
  bool operator==(const Result&) const = default;
};

/// Two steps, so that optimizer state counts.
Result run(Device& device, const Problem& p) {
  const std::int64_t count = p.outputs * p.inputs + (p.has_bias ? p.outputs : 0);
  const int slots = optimizer_state_slots(p.optimizer);
  Result result{values(1, count),
                std::vector<float>(static_cast<std::size_t>(slots > 0 ? count : 0)),
                std::vector<float>(static_cast<std::size_t>(slots > 1 ? count : 0))};
  for (std::uint64_t i = 0; i < 2; ++i) {
    const std::vector<float> gradients = values(10 + i, p.rows * p.outputs);
    const std::vector<float> inputs = values(20 + i, p.rows * p.inputs);
    FactorStepArgs args;
    args.rows = p.rows;
    args.outputs = p.outputs;
    args.inputs = p.inputs;
    args.has_bias = p.has_bias;
    args.output_gradients = gradients.data();
    args.input_values = inputs.data();
    // The bias goes its own way, so that neither gets the other's step.
    args.weight_step = make_optimizer_step(p.optimizer, static_cast<Iteration>(i), 0.25f);
    args.bias_step = make_optimizer_step(p.optimizer, static_cast<Iteration>(i), 0.25f,
                                         {.learning_rate = 2.0, .weight_decay = 0.0});
    args.parameters = result.parameters;
    args.state0 = result.state0;
    args.state1 = result.state1;
    const absl::Status status = device.step_from_factors(args);
    EXPECT_TRUE(status.ok()) << status;
  }
  return result;
}

std::vector<Problem> problems() {
  OptimizerSpec sgd, momentum, adamw;
  momentum.momentum = 0.9;
  momentum.weight_decay = 0.0005;
  adamw.type = OptimizerType::kAdamW;
  adamw.weight_decay = 0.01;
  return {
      {1, 1, 1, true, sgd},          {1, 1, 1, false, momentum},      {7, 3, 5, true, momentum},
      {64, 10, 500, true, momentum}, {33, 129, 1025, true, momentum}, {96, 300, 2100, false, sgd},
      {12, 257, 40, true, adamw},    {48, 1, 3000, true, sgd}};
}

TEST(FactorStep, AgreesWithPlainLoops) {
  const auto reference = make_reference_device();
  const auto cpu = make_cpu_device(2);
  for (const Problem& p : problems()) {
    SCOPED_TRACE(absl::StrCat(p.outputs, " x ", p.inputs, " from ", p.rows, " rows"));
    const Result wanted = run(*reference, p);
    const Result got = run(*cpu, p);
    // Sums of `rows` products below 1, scaled by 1/4; Adam divides by a small number again.
    const double scale = p.optimizer.type == OptimizerType::kSgd ? 1.0 : 100.0;
    const double tolerance = 8.0 * scale * static_cast<double>(p.rows + 4) * testing::kFloatEpsilon;
    EXPECT_TRUE(all_near(got.parameters, wanted.parameters, tolerance));
    EXPECT_TRUE(all_near(got.state0, wanted.state0, tolerance));
  }
}

TEST(FactorStep, TheNumberOfThreadsChangesNoBit) {
  for (const Problem& p : problems()) {
    const Result one = run(*make_cpu_device(1), p);
    for (const int threads : {2, 3, 5, 16}) {
      EXPECT_TRUE(run(*make_cpu_device(threads), p) == one)
          << threads << " threads, " << p.outputs << " x " << p.inputs << " from " << p.rows;
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
    for (std::uint32_t l = 0; l < 2; ++l) ASSERT_TRUE(ours->keep_factors(LayerIndex(l)).ok());
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
      const auto stepped = ours->parameters(layer);
      EXPECT_TRUE(all_near({stepped.begin(), stepped.end()}, expected, 1e-6));
    }
  }
}

TEST(FactorStep, MeasuresTheGradientThatItSteps) {
  for (const Problem& p : problems()) {
    const std::vector<float> gradients = values(10, p.rows * p.outputs);
    const std::vector<float> inputs = values(20, p.rows * p.inputs);
    FactorStepArgs args;
    args.rows = p.rows;
    args.outputs = p.outputs;
    args.inputs = p.inputs;
    args.has_bias = p.has_bias;
    args.output_gradients = gradients.data();
    args.input_values = inputs.data();
    const auto one = make_cpu_device(1)->measure_factors(args);
    const auto three = make_cpu_device(3)->measure_factors(args);
    const auto reference = make_reference_device()->measure_factors(args);
    ASSERT_TRUE(one.ok() && three.ok() && reference.ok());
    EXPECT_EQ(one->weight, three->weight) << "no bit depends on the threads";
    EXPECT_EQ(one->bias, three->bias);
    // An element of the product has `rows` roundings of 2^-24 of its terms' magnitude, a square
    // twice as many; terms do not all have one sign, so the elements may be smaller than they.
    const double tolerance = 4.0 * static_cast<double>(p.rows + 2) * 0x1p-24;
    EXPECT_NEAR(one->weight, reference->weight, tolerance * reference->weight + 1e-12);
    EXPECT_NEAR(one->bias, reference->bias, tolerance * reference->bias + 1e-12);
    EXPECT_EQ(reference->bias > 0.0, p.has_bias);
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
  const absl::Status status = (*executor)->keep_factors(LayerIndex(0));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("conv1"));
  EXPECT_TRUE((*executor)->keep_factors(LayerIndex(1)).ok());
}

}  // namespace
}  // namespace poseidon
