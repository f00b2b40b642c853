// Whole networks on the device under test: one pass against the CPU device, steps, a trajectory,
// the same bits twice, and the reported place of a NaN.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/job/data_spec.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/device_under_test.h"
#include "tests/gpu/training.h"
#include "tests/support/layer_harness.h"
#include "tests/support/network_checks.h"
#include "worker/data/feed/batches.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/executor/forwarding_device.h"
#include "worker/engine/executor/network_executor.h"

namespace poseidon::networks_test {
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
// and both directions: 3 epsilon, 5 times that to spare. Besides, whatever the type, ReLU and max
// pooling decide some values otherwise that lie within epsilon of their border: of a layer's
// gradient a part of about 0.4 epsilon, whose size is the root of that; over ten such layers
// 2 sqrt(epsilon). A missing term or a wrong sign is worse than any of these: about 1.
double gradient_tolerance(const testing::Accuracy& accuracy) {
  const double decisions = 2 * std::sqrt(accuracy.epsilon());
  if (accuracy.is_float()) {
    return 8 * std::sqrt(30.0 * 256.0) * testing::kFloatEpsilon + decisions;
  }
  return 16 * accuracy.epsilon() + decisions;
}

// In float32 that part is mostly none and seldom one decision, which is of n values 1/sqrt(n) of
// the gradient of every layer below, and up to three times that as values are not all of one size.
// Layers of fewer than 1000 values hardly ever have one so near to its border.
constexpr double kOneDecision = 0.1;
// In a coarse type they have, and all layers below see it: the smallest here have some 250 values
// (a branch of the Inception-V3 block: 0.104 in TF32 and in float16 alike, on the emulated GPU).
constexpr double kOneDecisionOfASmallLayer = 0.19;

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

class GpuNetworks : public testing::PrecisionTest {
 protected:
  /// Null, and the test has failed, where the device cannot.
  std::unique_ptr<Training> train(const NetSpec& net, std::int64_t batch_size,
                                  const OptimizerSpec& optimizer) const {
    return Training::create(net, batch_size, make_device(), optimizer);
  }
  static std::unique_ptr<Training> train_on_cpu(const NetSpec& net, std::int64_t batch_size,
                                                const OptimizerSpec& optimizer) {
    return Training::create(net, batch_size, make_cpu_device(kThreads), optimizer);
  }
};

/// Leaves every ReLU to itself, and counts them.
class ReluApart final : public ForwardingDevice {
 public:
  ReluApart(std::unique_ptr<Device> inner, bool shares, int* relus)
      : ForwardingDevice(std::move(inner)), shares_(shares), relus_(relus) {}
  ReluShare takes_relu(const LayerSpec& layer) const override {
    return shares_ ? ForwardingDevice::takes_relu(layer) : ReluShare::kNone;
  }
  absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(
      const LayerSpec& layer, const OperatorOptions& options) override {
    *relus_ += layer.type == LayerType::kRelu ? 1 : 0;
    return ForwardingDevice::make_operator(layer, options);
  }

 private:
  const bool shares_;
  int* const relus_;
};

TEST_P(GpuNetworks, OnePassAndFiveStepsAsTheCpu) {
  const auto nets = networks();
  ASSERT_EQ(nets.size(), 8u);
  for (const NetSpec& net : nets) {
    SCOPED_TRACE(net.name);
    const std::int64_t batch_size = 6;
    const auto ours = train(net, batch_size, momentum(0.002));
    const auto cpu = train_on_cpu(net, batch_size, momentum(0.002));
    ASSERT_NE(ours, nullptr);
    ASSERT_NE(cpu, nullptr);
    const double tolerance = gradient_tolerance(accuracy_);
    const double decision = accuracy_.is_float() ? kOneDecision : kOneDecisionOfASmallLayer;
    for (std::uint64_t i = 0; i < 6; ++i) {
      const Batch batch = testing::random_batch(net, batch_size, 50 + i);
      const double wanted = cpu->iterate(batch);
      // Steps magnify what the passes differ by.
      EXPECT_NEAR(ours->iterate(batch), wanted, (i == 0 ? 1 : 4) * tolerance * wanted) << i;
      if (i > 0) continue;
      const auto gradients = ours->gradients();
      const auto wanted_gradients = cpu->gradients();
      for (std::size_t l = 0; l < gradients.size(); ++l) {
        EXPECT_LE(testing::relative_distance(gradients[l], wanted_gradients[l]),
                  std::max(tolerance, decision))
            << "gradient of parameter layer " << l;
      }
    }
    std::vector<float> statistics(static_cast<std::size_t>(net.statistics_count()));
    std::vector<float> wanted_statistics(statistics.size());
    const absl::Status read = ours->executor().read_statistics(statistics);
    ASSERT_TRUE(read.ok()) << read;
    ASSERT_TRUE(cpu->executor().read_statistics(wanted_statistics).ok());
    EXPECT_LE(testing::relative_distance(statistics, wanted_statistics), 4 * tolerance);
    EXPECT_LE(testing::relative_distance(ours->parameters(), cpu->parameters()), tolerance);
  }
}

TEST_P(GpuNetworks, TestsAsTheCpu) {
  for (const NetSpec& net : networks()) {
    SCOPED_TRACE(net.name);
    const auto ours = train(net, 5, momentum(0.01));
    const auto cpu = train_on_cpu(net, 5, momentum(0.01));
    ASSERT_NE(ours, nullptr);
    ASSERT_NE(cpu, nullptr);
    Batch batch = testing::random_batch(net, 5, 60);
    batch.valid_samples = 4;  // a last batch
    const auto got = ours->executor().forward(batch, Phase::kTest, {});
    const auto wanted = cpu->executor().forward(batch, Phase::kTest, {});
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
    const auto trained = [&]() -> std::vector<float> {
      const auto training = train(net, 4, momentum(0.01));
      if (training == nullptr) return {};
      for (std::uint64_t i = 0; i < 3; ++i) {
        training->iterate(testing::random_batch(net, 4, 70 + i));
      }
      return training->parameters();
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

// What a layer took is within the pass, and its layers one after the other.
TEST_P(GpuNetworks, EveryLayerHasItsShareOfThePass) {
  const auto net = resolve_network("lenet", ".");
  ASSERT_TRUE(net.ok());
  const auto mark = device_->make_mark();
  ASSERT_TRUE(mark.ok()) << mark.status();
  const bool has_clock = *mark != nullptr;
  const auto ours = train(*net, 6, momentum(0.01));
  ASSERT_NE(ours, nullptr);
  const SystemClock clock;
  const auto check = [&](Nanoseconds began, std::vector<std::uint32_t> layers) {
    const Nanoseconds took = clock.now() - began;
    std::vector<std::uint32_t> found;
    Nanoseconds last{0};
    for (const LayerInterval& ran : ours->executor().device_times().layers) {
      found.push_back(ran.layer.value());
      EXPECT_GE(ran.begin, last);
      EXPECT_GT(ran.end, ran.begin) << "layer " << ran.layer;
      last = ran.end;
    }
    if (!has_clock) layers.clear();
    EXPECT_EQ(found, layers);
    EXPECT_LE(last, took);
  };
  for (std::uint64_t i = 0; i < 3; ++i) {
    const Nanoseconds forward_began = clock.now();
    const auto result =
        ours->executor().forward(testing::random_batch(*net, 6, 90 + i), Phase::kTrain, {});
    ASSERT_TRUE(result.ok()) << result.status();
    check(forward_began, {0, 1, 2, 3});
    const Nanoseconds backward_began = clock.now();
    const absl::Status backward = ours->executor().backward({});
    ASSERT_TRUE(backward.ok()) << backward;
    check(backward_began, {3, 2, 1, 0});
  }
}

TEST_P(GpuNetworks, StagedBatchesChangeNoBit) {
  const auto net = resolve_network("lenet", ".");
  ASSERT_TRUE(net.ok());
  std::vector<Batch> batches;
  for (std::uint64_t i = 0; i < 4; ++i) batches.push_back(testing::random_batch(*net, 6, 70 + i));
  const auto plain = train(*net, 6, momentum(0.01));
  const auto staged = train(*net, 6, momentum(0.01));
  ASSERT_NE(plain, nullptr);
  ASSERT_NE(staged, nullptr);
  for (std::size_t i = 0; i + 1 < batches.size(); ++i) {
    EXPECT_EQ(staged->iterate(batches[i], &batches[i + 1]), plain->iterate(batches[i])) << i;
  }
  EXPECT_EQ(staged->parameters(), plain->parameters());
}

TEST_P(GpuNetworks, FactorsStandForTheGradient) {
  const auto net = resolve_network("lenet", ".");
  ASSERT_TRUE(net.ok());
  const auto plain = train(*net, 6, momentum(0.01));
  const auto ours = train(*net, 6, momentum(0.01));
  ASSERT_NE(plain, nullptr);
  ASSERT_NE(ours, nullptr);
  const LayerIndex layer(2);  // ip1, 500 x 800
  const absl::Status kept = ours->executor().keep_factors(layer, 0);
  ASSERT_TRUE(kept.ok()) << kept;
  const Batch batch = testing::random_batch(*net, 6, 80);
  for (Training* training : {plain.get(), ours.get()}) {
    const auto result = training->executor().forward(batch, Phase::kTrain, {});
    ASSERT_TRUE(result.ok()) << result.status();
    const absl::Status backward = training->executor().backward({});
    ASSERT_TRUE(backward.ok()) << backward;
  }
  std::vector<float> gradient(6 * 500), input(6 * 800);
  const absl::Status copied = ours->executor().copy_factors(layer, gradient, input);
  ASSERT_TRUE(copied.ok()) << copied;
  const auto before = ours->executor().parameters(layer);
  std::vector<float> expected(before.begin(), before.end());
  for (std::size_t e = 0; e < expected.size(); ++e) {
    expected[e] -= plain->executor().gradients(layer)[e];
  }
  OptimizerSpec sgd;
  sgd.learning_rate = 1.0;
  const OptimizerStep step = make_optimizer_step(sgd, 0, 1.0f);
  const absl::Status done = ours->executor().step_from_factors(
      layer,
      {.output_gradients = gradient, .inputs = input, .weight_step = step, .bias_step = step});
  ASSERT_TRUE(done.ok()) << done;
  const absl::Status fetched = ours->executor().fetch_parameters(layer);
  ASSERT_TRUE(fetched.ok()) << fetched;
  const auto stepped = ours->executor().parameters(layer);
  const std::vector<float> got(stepped.begin(), stepped.end());
  const double tolerance = accuracy_.is_float() ? 1e-6 : 8 * accuracy_.epsilon();
  EXPECT_TRUE(testing::all_near(got, expected, tolerance));
}

TEST_P(GpuNetworks, ANanIsFoundInItsLayer) {
  const auto net = resolve_network("lenet", ".");
  ASSERT_TRUE(net.ok());
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [layer, name] : {std::pair{0u, "conv1"}, {1u, "conv2"}, {3u, "ip2"}}) {
    const auto training = train(*net, 3, momentum(0.01));
    ASSERT_NE(training, nullptr);
    training->executor().parameters(LayerIndex(layer))[7] = kNan;
    const Batch batch = testing::random_batch(*net, 3, 90);
    const auto result = training->executor().forward(batch, Phase::kTrain, {});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(std::isnan(result->loss_sum)) << name;
    EXPECT_EQ(training->executor().first_nonfinite_layer(), std::string(name) + " (parameters)");
  }
  const auto training = train(*net, 3, momentum(0.01));
  ASSERT_NE(training, nullptr);
  Batch batch = testing::random_batch(*net, 3, 91);
  auto result = training->executor().forward(batch, Phase::kTrain, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(training->executor().first_nonfinite_layer(), "");
  batch.images[100] = kNan;
  result = training->executor().forward(batch, Phase::kTrain, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(training->executor().first_nonfinite_layer(), "input (data)");
}

// In whatever layout what lies between layers is kept.
TEST_P(GpuNetworks, AnOverflowIsFoundInItsLayer) {
  const auto net = resolve_network("lenet", ".");
  ASSERT_TRUE(net.ok());
  const auto training = train(*net, 3, momentum(0.01));
  ASSERT_NE(training, nullptr);
  for (float& weight : training->executor().parameters(LayerIndex(1))) weight *= 1e38f;
  for (float& weight : training->executor().parameters(LayerIndex(0))) weight *= 100.0f;
  const auto result =
      training->executor().forward(testing::random_batch(*net, 3, 92), Phase::kTrain, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(std::isfinite(result->loss_sum));
  EXPECT_EQ(training->executor().first_nonfinite_layer(), "conv2 (output)");
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

  const auto ours = train(*net, batch_size, momentum(0.0005));
  const auto cpu = train_on_cpu(*net, batch_size, momentum(0.0005));
  ASSERT_NE(ours, nullptr);
  ASSERT_NE(cpu, nullptr);
  // PyTorch and the CPU device, both float32, are at most 1e-3 apart after 200 iterations. A coarse
  // type moves each score by about an epsilon of its size, so the mean loss by no more.
  const double tolerance = accuracy_.is_float() ? 1e-3 : 8 * accuracy_.epsilon();
  double first = 0.0, last = 0.0;
  for (int i = 0; i < 50; ++i) {
    const auto batch = (*batches)->next(Milliseconds(30000));
    ASSERT_TRUE(batch.ok()) << batch.status();
    const double wanted = cpu->iterate(**batch);
    last = ours->iterate(**batch);
    ASSERT_NEAR(last, wanted, tolerance * wanted) << "iteration " << i;
    if (i == 0) first = last;
  }
  EXPECT_LT(last, first) << "it must train, or the comparison means little";
}

TEST_P(GpuNetworks, WhoComputesAReluChangesNoBit) {
  for (const NetSpec& net : networks()) {
    SCOPED_TRACE(net.name);
    int alone = 0, left = 0;
    auto device = make_device(), other = make_device();
    ASSERT_TRUE(device != nullptr && other != nullptr);
    const bool is_gpu = device->name().starts_with("cuda");
    const auto shared = Training::create(
        net, 3, std::make_unique<ReluApart>(std::move(device), true, &left), momentum(0.002));
    const auto apart = Training::create(
        net, 3, std::make_unique<ReluApart>(std::move(other), false, &alone), momentum(0.002));
    ASSERT_TRUE(shared != nullptr && apart != nullptr);
    const bool has_own_layout = GetParam() == "bf16" || GetParam() == "tf32";
    std::set<std::size_t> factors;  // which then lie in another layout than what is before them
    int relus = 0, behind_batch_norm = 0;
    for (const LayerSpec& layer : net.layers) {
      if (layer.type == LayerType::kFullyConnected) factors.insert(layer.inputs.front());
    }
    for (std::size_t i = 0; i < net.layers.size(); ++i) {
      const LayerSpec& layer = net.layers[i];
      if (layer.type != LayerType::kRelu) continue;
      ++relus;
      const bool is_image = layer.output_shape.size() == 3 &&
                            element_count(layer.output_shape) > layer.output_shape.front();
      if (has_own_layout && factors.contains(i) && is_image) continue;
      const std::size_t before = layer.inputs.front();
      if (before == kNetworkInput) continue;
      behind_batch_norm += net.layers[before].type == LayerType::kBatchNorm ? 1 : 0;
    }
    EXPECT_EQ(alone, relus);
    EXPECT_EQ(alone - left, is_gpu ? behind_batch_norm : 0) << "of these nothing is left";
    for (std::uint64_t i = 0; i < 2; ++i) {
      const Batch batch = testing::random_batch(net, 3, 70 + i);
      EXPECT_EQ(shared->iterate(batch), apart->iterate(batch));
      EXPECT_EQ(shared->gradients(), apart->gradients());
    }
    std::vector<float> statistics(static_cast<std::size_t>(net.statistics_count()));
    std::vector<float> wanted = statistics;
    ASSERT_TRUE(shared->executor().read_statistics(statistics).ok());
    ASSERT_TRUE(apart->executor().read_statistics(wanted).ok());
    EXPECT_EQ(statistics, wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, GpuNetworks, ::testing::ValuesIn(kPrecisions),
                         testing::precision_name);

class GpuGolden : public testing::PrecisionTest {};
TEST_P(GpuGolden, BlocksMatchPyTorch) {
  testing::blocks_match_pytorch([this] { return make_device(); });
}
INSTANTIATE_TEST_SUITE_P(Precisions, GpuGolden, ::testing::Values("fp32"), testing::precision_name);

}  // namespace
}  // namespace poseidon::networks_test
