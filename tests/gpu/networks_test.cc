// Whole networks on the device under test: one pass against the CPU device, steps, a trajectory,
// the same bits twice, and where a NaN is said to be.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/data_spec.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/device_under_test.h"
#include "tests/gpu/training.h"
#include "worker/data/batches.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/layer_harness.h"
#include "worker/engine/network_checks.h"
#include "worker/engine/network_executor.h"

namespace poseidon {
namespace {

using nlohmann::json;
using testing::kPrecisions;
using testing::Training;

constexpr int kThreads = 2;

// How far a gradient of a whole network may be from the CPU's, as a part of its own size.
//
// In float32 as in network_checks.cc: roundings of the longest sums (256 terms) of at most 30
// layers, 8 to spare. In a coarse type every layer moves its values by some 0.4 epsilon of
// themselves (see Accuracy::tolerance), which adds up like random numbers over at most 30 layers
// and both directions: 3 epsilon, 5 times that to spare. Besides, ReLU and max pooling decide some
// values otherwise that lie within epsilon of their border: of a layer's gradient a part of about
// 0.4 epsilon, whose size is the root of that; over ten such layers 2 sqrt(epsilon). A missing term
// or a wrong sign is worse than any of these: about 1.
double gradient_tolerance(const testing::Accuracy& accuracy) {
  if (accuracy.is_float()) return 8 * std::sqrt(30.0 * 256.0) * testing::kFloatEpsilon;
  return 16 * accuracy.epsilon() + 2 * std::sqrt(accuracy.epsilon());
}

OptimizerSpec momentum(double learning_rate) {
  OptimizerSpec optimizer;
  optimizer.learning_rate = learning_rate;
  optimizer.momentum = 0.9;
  optimizer.weight_decay = 0.0005;
  return optimizer;
}

/// Small ones of all the large networks' blocks, and the shipped small ones.
std::vector<NetSpec> networks() {
  std::vector<NetSpec> result;
  for (const json& golden : testing::golden_blocks()) {
    const auto net = parse_network(golden["network"]);
    EXPECT_TRUE(net.ok()) << net.status();
    if (net.ok()) result.push_back(*net);
  }
  for (const char* name : {"lenet", "cifar10_quick"}) {
    const auto net = resolve_network(name, ".");
    EXPECT_TRUE(net.ok()) << net.status();
    if (net.ok()) result.push_back(*net);
  }
  return result;
}

class GpuNetworks : public testing::PrecisionTest {};

TEST_P(GpuNetworks, OnePassAndFiveStepsAsTheCpu) {
  const auto nets = networks();
  ASSERT_EQ(nets.size(), 8u);
  for (const NetSpec& net : nets) {
    SCOPED_TRACE(net.name);
    const std::int64_t batch_size = 6;
    Training ours(net, batch_size, make_device(), momentum(0.002));
    Training cpu(net, batch_size, make_cpu_device(kThreads), momentum(0.002));
    const double tolerance = gradient_tolerance(accuracy_);
    for (std::uint64_t i = 0; i < 6; ++i) {
      const Batch batch = testing::random_batch(net, batch_size, 50 + i);
      const double wanted = cpu.iterate(batch);
      // Steps magnify what the passes differ by.
      EXPECT_NEAR(ours.iterate(batch), wanted, (i == 0 ? 1 : 4) * tolerance * wanted) << i;
      if (i > 0) continue;
      const auto gradients = ours.gradients();
      const auto wanted_gradients = cpu.gradients();
      for (std::size_t l = 0; l < gradients.size(); ++l) {
        EXPECT_LE(testing::relative_distance(gradients[l], wanted_gradients[l]), tolerance)
            << "gradient of parameter layer " << l;
      }
    }
    std::vector<float> statistics(static_cast<std::size_t>(net.statistics_count()));
    std::vector<float> wanted_statistics(statistics.size());
    ASSERT_TRUE(ours.executor().read_statistics(statistics).ok());
    ASSERT_TRUE(cpu.executor().read_statistics(wanted_statistics).ok());
    EXPECT_LE(testing::relative_distance(statistics, wanted_statistics), 4 * tolerance);
    EXPECT_LE(testing::relative_distance(ours.parameters(), cpu.parameters()), tolerance);
  }
}

TEST_P(GpuNetworks, TestsAsTheCpu) {
  for (const NetSpec& net : networks()) {
    SCOPED_TRACE(net.name);
    Training ours(net, 5, make_device(), momentum(0.01));
    Training cpu(net, 5, make_cpu_device(kThreads), momentum(0.01));
    Batch batch = testing::random_batch(net, 5, 60);
    batch.valid_samples = 4;  // a last batch
    const auto got = ours.executor().forward(batch, Phase::kTest, {});
    const auto wanted = cpu.executor().forward(batch, Phase::kTest, {});
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    EXPECT_EQ(got->samples, 4);
    EXPECT_NEAR(got->mean_loss(), wanted->mean_loss(),
                gradient_tolerance(accuracy_) * wanted->mean_loss());
    if (!accuracy_.is_float()) continue;  // two scores may be equal in a coarse type
    EXPECT_EQ(got->correct, wanted->correct);
  }
}

// Fresh executors and old ones, alone and beside each other on one GPU.
TEST_P(GpuNetworks, TheSameBitsTwice) {
  for (const NetSpec& net : networks()) {
    SCOPED_TRACE(net.name);
    const auto trained = [&] {
      Training training(net, 4, make_device(), momentum(0.01));
      for (std::uint64_t i = 0; i < 3; ++i) training.iterate(testing::random_batch(net, 4, 70 + i));
      return training.parameters();
    };
    const std::vector<float> wanted = trained();
    EXPECT_EQ(trained(), wanted) << "one after the other";
    std::vector<std::vector<float>> beside(2);
    std::vector<std::thread> threads;
    for (auto& result : beside) threads.emplace_back([&] { result = trained(); });
    for (std::thread& thread : threads) thread.join();
    for (const auto& result : beside) EXPECT_EQ(result, wanted) << "two beside each other";
  }
}

TEST_P(GpuNetworks, FactorsStandForTheGradient) {
  const auto net = resolve_network("lenet", ".");
  ASSERT_TRUE(net.ok());
  Training plain(*net, 6, make_device(), momentum(0.01));
  Training ours(*net, 6, make_device(), momentum(0.01));
  const LayerIndex layer(2);  // ip1, 500 x 800
  ASSERT_TRUE(ours.executor().keep_factors(layer).ok());
  const Batch batch = testing::random_batch(*net, 6, 80);
  for (Training* training : {&plain, &ours}) {
    ASSERT_TRUE(training->executor().forward(batch, Phase::kTrain, {}).ok());
    ASSERT_TRUE(training->executor().backward({}).ok());
  }
  std::vector<float> gradient(6 * 500), input(6 * 800);
  ASSERT_TRUE(ours.executor().copy_factors(layer, gradient, input).ok());
  const auto before = ours.executor().parameters(layer);
  std::vector<float> expected(before.begin(), before.end());
  for (std::size_t e = 0; e < expected.size(); ++e) {
    expected[e] -= plain.executor().gradients(layer)[e];
  }
  OptimizerSpec sgd;
  sgd.learning_rate = 1.0;
  const OptimizerStep step = make_optimizer_step(sgd, 0, 1.0f);
  ASSERT_TRUE(ours.executor()
                  .step_from_factors(layer, {.output_gradients = gradient,
                                             .inputs = input,
                                             .weight_step = step,
                                             .bias_step = step,
                                             .state0 = {},
                                             .state1 = {}})
                  .ok());
  const auto stepped = ours.executor().parameters(layer);
  const std::vector<float> got(stepped.begin(), stepped.end());
  const double tolerance = accuracy_.is_float() ? 1e-6 : 8 * accuracy_.epsilon();
  EXPECT_TRUE(testing::all_near(got, expected, tolerance));
}

TEST_P(GpuNetworks, ANanIsFoundInItsLayer) {
  const auto net = resolve_network("lenet", ".");
  ASSERT_TRUE(net.ok());
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [layer, name] : {std::pair{0u, "conv1"}, {1u, "conv2"}, {3u, "ip2"}}) {
    Training training(*net, 3, make_device(), momentum(0.01));
    training.executor().parameters(LayerIndex(layer))[7] = kNan;
    const Batch batch = testing::random_batch(*net, 3, 90);
    const auto result = training.executor().forward(batch, Phase::kTrain, {});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(std::isnan(result->loss_sum)) << name;
    EXPECT_EQ(training.executor().first_nonfinite_layer(), std::string(name) + " (parameters)");
  }
  Training training(*net, 3, make_device(), momentum(0.01));
  Batch batch = testing::random_batch(*net, 3, 91);
  ASSERT_TRUE(training.executor().forward(batch, Phase::kTrain, {}).ok());
  EXPECT_EQ(training.executor().first_nonfinite_layer(), "");
  batch.images[100] = kNan;
  ASSERT_TRUE(training.executor().forward(batch, Phase::kTrain, {}).ok());
  EXPECT_EQ(training.executor().first_nonfinite_layer(), "input (data)");
}

// The golden trajectory's job: real images, a rate at which max pooling's choices do not magnify
// what differs (tests/golden/trajectory/README.md).
TEST_P(GpuNetworks, FiftyIterationsOfLeNetAsTheCpu) {
  const std::filesystem::path folder = "tests/golden/trajectory";
  std::ifstream file(folder / "job.json");
  ASSERT_TRUE(file) << "run from the repository root";
  const json job = json::parse(file);
  DataSpec data;
  ASSERT_TRUE(parse_data_spec(job["data"], "job.json", data).ok());
  resolve_paths(data, folder);
  const auto net = resolve_network("lenet", ".");
  ASSERT_TRUE(net.ok());
  const std::int64_t batch_size = 64;
  const auto batches =
      TrainBatches::open(data, net->input_shape, net->classes, {.batch_size = batch_size});
  ASSERT_TRUE(batches.ok()) << batches.status();

  Training ours(*net, batch_size, make_device(), momentum(0.0005));
  Training cpu(*net, batch_size, make_cpu_device(kThreads), momentum(0.0005));
  // PyTorch and the CPU device, both float32, are at most 1e-3 apart after 200 iterations. A coarse
  // type moves each score by about an epsilon of its size, so the mean loss by no more.
  const double tolerance = accuracy_.is_float() ? 1e-3 : 8 * accuracy_.epsilon();
  double first = 0.0, last = 0.0;
  for (int i = 0; i < 50; ++i) {
    const auto batch = (*batches)->next(Milliseconds(30000));
    ASSERT_TRUE(batch.ok()) << batch.status();
    const double wanted = cpu.iterate(**batch);
    last = ours.iterate(**batch);
    ASSERT_NEAR(last, wanted, tolerance * wanted) << "iteration " << i;
    if (i == 0) first = last;
  }
  EXPECT_LT(last, first) << "it must train, or the comparison means little";
}

INSTANTIATE_TEST_SUITE_P(Precisions, GpuNetworks, ::testing::ValuesIn(kPrecisions),
                         testing::precision_name);

class GpuGolden : public testing::PrecisionTest {};
TEST_P(GpuGolden, BlocksMatchPyTorch) {
  testing::blocks_match_pytorch([this] { return make_device(); });
}
INSTANTIATE_TEST_SUITE_P(Precisions, GpuGolden, ::testing::Values("fp32"), testing::precision_name);

}  // namespace
}  // namespace poseidon
