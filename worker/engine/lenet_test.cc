// LeNet as a whole on the CPU device: against PyTorch, and twice the same bits.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "models/net/initialise.h"
#include "nlohmann/json.hpp"
#include "tests/support/layer_harness.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/executor.h"

namespace poseidon::lenet_test {
namespace {

using nlohmann::json;

std::unique_ptr<Executor> lenet(std::int64_t batch_size, int threads, std::uint64_t seed) {
  const auto net = resolve_network("lenet", ".");
  EXPECT_TRUE(net.ok());
  auto executor = make_cpu_executor(*net, {batch_size, 1, threads});
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  initialise_parameters(*net, seed,
                        [&](LayerIndex layer) { return (*executor)->parameters(layer); });
  return *std::move(executor);
}

Batch digits(std::int64_t samples, std::uint64_t seed) {
  Batch batch;
  batch.samples = batch.valid_samples = samples;
  batch.images = testing::values(mix_seed(seed, 0), samples * 784);
  for (std::int64_t i = 0; i < samples; ++i) {
    batch.labels.push_back(static_cast<std::int32_t>((i * 7 + 3) % 10));
  }
  return batch;
}

TEST(LeNet, MatchesPyTorch) {
  std::ifstream file("tests/golden/layers/lenet.json");
  ASSERT_TRUE(file) << "run from the repository root";
  const json golden = json::parse(file);
  const auto executor = lenet(4, 1, golden["init_seed"].get<std::uint64_t>());
  Batch batch = digits(4, golden["input_seed"].get<std::uint64_t>());
  batch.labels = golden["labels"].get<std::vector<std::int32_t>>();
  const auto result = executor->forward(batch, Phase::kTrain, {});
  ASSERT_TRUE(result.ok());
  ASSERT_TRUE(executor->backward({}).ok());
  EXPECT_NEAR(result->mean_loss(), golden["loss"].get<double>(), 800 * testing::kFloatEpsilon);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const json& layer = golden["layers"][i];
    SCOPED_TRACE(layer["name"]);
    EXPECT_EQ(executor->parameters(LayerIndex(i))[0], layer["first_weight"].get<float>());
    const auto gradient = executor->gradients(LayerIndex(i));
    // The longest sums have 4 x 24 x 24 products (a weight of conv1) and 800 (forward of ip1).
    // Their rounding errors are random, so they grow with the square root; 4 layers; a factor 2 to
    // spare.
    const double tolerance =
        layer["largest"].get<double>() * 8 * std::sqrt(2304.0) * testing::kFloatEpsilon;
    std::vector<float> sampled;
    for (std::size_t j = 0; j < gradient.size(); j += layer["step"].get<std::size_t>()) {
      sampled.push_back(gradient[j]);
    }
    EXPECT_TRUE(testing::all_near(sampled, layer["gradient_every_step"], tolerance));
    const auto bias = layer["bias_gradient"].get<std::vector<float>>();
    const std::vector<float> got(gradient.end() - static_cast<std::ptrdiff_t>(bias.size()),
                                 gradient.end());
    EXPECT_TRUE(testing::all_near(got, bias, tolerance)) << "bias";
    double squares = 0.0;
    for (const float g : gradient) squares += static_cast<double>(g) * g;
    EXPECT_NEAR(std::sqrt(squares), layer["norm"].get<double>(),
                1e-5 * layer["norm"].get<double>());
  }
}

// A few steps of plain gradient descent, on a thread of its own; all parameters at the end.
std::vector<std::vector<float>> trained(int threads) {
  std::vector<std::vector<float>> parameters;
  std::thread([&] {
    const auto executor = lenet(9, threads, 3);
    double first_loss = 0.0, loss = 0.0;
    for (int iteration = 0; iteration < 4; ++iteration) {
      const auto result = executor->forward(digits(9, 1), Phase::kTrain, {});
      EXPECT_TRUE(result.ok());
      EXPECT_TRUE(executor->backward({}).ok());
      loss = result->mean_loss();
      if (iteration == 0) first_loss = loss;
      for (std::uint32_t i = 0; i < 4; ++i) {
        const auto values = executor->parameters(LayerIndex(i));
        const auto gradient = executor->gradients(LayerIndex(i));
        for (std::size_t j = 0; j < values.size(); ++j) values[j] -= 0.02f * gradient[j];
      }
    }
    EXPECT_LT(loss, first_loss);
    for (std::uint32_t i = 0; i < 4; ++i) {
      const auto values = executor->parameters(LayerIndex(i));
      parameters.emplace_back(values.begin(), values.end());
    }
  }).join();
  return parameters;
}

TEST(LeNet, SameBitsFromRunToRun) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    const auto wanted = trained(threads);
    EXPECT_EQ(trained(threads), wanted);
  }
}

// Workers of a simulated cluster share one process: their executors must not disturb each other.
TEST(LeNet, ExecutorsOnSeveralThreadsAreIndependent) {
  const auto wanted = trained(1);
  std::vector<std::vector<std::vector<float>>> results(3);
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (auto& result : results) threads.emplace_back([&result] { result = trained(1); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, wanted);
}

}  // namespace
}  // namespace poseidon::lenet_test
