// The executor on all devices: its calls to them, and that their results agree.

#include "worker/engine/executor/network_executor.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/layer_harness.h"
#include "tests/twins/reference_device/reference_device.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/executor/executor_test_support.h"
#include "worker/engine/executor/forwarding_device.h"

namespace poseidon::network_executor_test {
namespace {

using nlohmann::json;
using testing::all_gradients;
using testing::all_near;
using testing::branched;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::initialise;
using testing::make_batch;
using testing::run;

struct Counts {
  int allocations = 0;
  std::vector<std::string> without_input_gradient, take_a_relu, relus;
};

// Sees what the executor asks of a device.
class RecordingDevice final : public ForwardingDevice {
 public:
  explicit RecordingDevice(Counts* counts, ReluShare share = ReluShare::kNone)
      : ForwardingDevice(make_reference_device()), counts_(counts), share_(share) {}
  ReluShare takes_relu(const LayerSpec& /*layer*/) const override { return share_; }
  absl::StatusOr<DeviceMemory> allocate(std::int64_t bytes) override {
    ++counts_->allocations;
    return inner().allocate(bytes);
  }
  absl::StatusOr<DeviceMemory> allocate_host(std::int64_t bytes) override {
    ++counts_->allocations;
    return inner().allocate_host(bytes);
  }
  absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(
      const LayerSpec& layer, const OperatorOptions& options) override {
    if (!options.wants_input_gradient) counts_->without_input_gradient.push_back(layer.name);
    if (options.relu != ReluShare::kNone) counts_->take_a_relu.push_back(layer.name);
    if (layer.type == LayerType::kRelu) counts_->relus.push_back(layer.name);
    return inner().make_operator(layer, options);
  }

 private:
  Counts* const counts_;
  const ReluShare share_;
};

TEST(NetworkExecutor, AllocatesAtCreationOnly) {
  Counts counts;
  const NetSpec net = branched(0.5);
  auto executor =
      NetworkExecutor::create(net, {2, 1, 1}, std::make_unique<RecordingDevice>(&counts));
  ASSERT_TRUE(executor.ok());
  const int at_creation = counts.allocations;
  EXPECT_GT(at_creation, 0);
  run(**executor, make_batch(net, 2, 1));
  EXPECT_EQ(counts.allocations, at_creation);
}

TEST(NetworkExecutor, NobodyComputesTheGradientOfTheData) {
  Counts counts;
  auto executor =
      NetworkExecutor::create(branched(), {2, 1, 1}, std::make_unique<RecordingDevice>(&counts));
  ASSERT_TRUE(executor.ok());
  EXPECT_THAT(counts.without_input_gradient, ElementsAre("a", "top1"))
      << "nor that of a count of hits";
}

// By the layer before it, only when no other layer needs its output.
TEST(NetworkExecutor, WhoIsAskedToTakeARelu) {
  const json net = {{"name", "relus"},
                    {"input", {2, 7, 5}},
                    {"layers",
                     {{{"name", "of_data"}, {"type", "relu"}},
                      {{"name", "a"}, {"type", "convolution"}, {"outputs", 3}, {"kernel", 3}},
                      {{"name", "alone"}, {"type", "relu"}},
                      {{"name", "b"}, {"type", "convolution"}, {"outputs", 3}, {"kernel", 1}},
                      {{"name", "other"}, {"type", "pooling"}, {"pool", "max"}, {"kernel", 1}},
                      {{"name", "one_of_two"}, {"type", "relu"}, {"inputs", {"b"}}},
                      {{"name", "sum"}, {"type", "add"}, {"inputs", {"one_of_two", "other"}}},
                      {{"name", "twice"}, {"type", "relu"}},
                      {{"name", "again"}, {"type", "relu"}},
                      {{"name", "fc"}, {"type", "fully_connected"}, {"outputs", 4}},
                      {{"name", "loss"}, {"type", "softmax_cross_entropy"}}}}};
  const auto spec = parse_network(net);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto made_with = [&](ReluShare share) {
    Counts counts;
    const auto executor = NetworkExecutor::create(
        *spec, {2, 1, 1}, std::make_unique<RecordingDevice>(&counts, share));
    EXPECT_TRUE(executor.ok()) << executor.status();
    return counts;
  };
  const Counts forward = made_with(ReluShare::kForward);
  EXPECT_THAT(forward.take_a_relu, ElementsAre("a", "sum"));
  EXPECT_EQ(forward.relus.size(), 5u) << "their backward is left to them";
  const Counts both = made_with(ReluShare::kBoth);
  EXPECT_THAT(both.take_a_relu, ElementsAre("a", "sum"));
  EXPECT_THAT(both.relus, ElementsAre("of_data", "one_of_two", "again"));
  EXPECT_THAT(made_with(ReluShare::kNone).take_a_relu, ElementsAre());
}

TEST(NetworkExecutor, DevicesAgreeOnABranchedNetwork) {
  const NetSpec net = branched(0.5);
  auto cpu = make_cpu_executor(net, {3, 1, 2});
  auto reference = NetworkExecutor::create(net, {3, 1, 1}, make_reference_device());
  ASSERT_TRUE(cpu.ok() && reference.ok());
  initialise(**cpu, 5);
  initialise(**reference, 5);
  const Batch batch = make_batch(net, 3, 2);
  EXPECT_NEAR(run(**cpu, batch).loss_sum, run(**reference, batch).loss_sum, 1e-5);
  const auto got = all_gradients(**cpu);
  const auto wanted = all_gradients(**reference);
  for (std::size_t i = 0; i < got.size(); ++i) {
    // Sums of at most 3 x 35 terms of order one, through five layers.
    EXPECT_TRUE(all_near(got[i], wanted[i], 5 * 105 * testing::kFloatEpsilon)) << "layer " << i;
  }
}

json conv(const char* name, int outputs, const char* input) {
  return json{{"name", name}, {"type", "convolution"}, {"outputs", outputs}, {"kernel", 3},
              {"pad", 1},     {"inputs", {input}}};
}

// Images of 16, 32 and 48 channels, which the CPU device keeps in a layout of its own; 24 channels,
// which it does not; and every kind of layer between both.
NetSpec widths() {
  const json net = {{"name", "widths"},
                    {"input", {3, 13, 11}},
                    {"layers",
                     {conv("a", 32, "input"),
                      {{"name", "bn"}, {"type", "batch_norm"}},
                      {{"name", "relu"}, {"type", "relu"}},
                      {{"name", "max"},
                       {"type", "pooling"},
                       {"pool", "max"},
                       {"kernel", 3},
                       {"stride", 2},
                       {"pad", 1}},
                      conv("b", 48, "max"),
                      conv("c", 24, "max"),
                      {{"name", "mixed"}, {"type", "concat"}, {"inputs", {"b", "c"}}},
                      conv("d", 32, "mixed"),
                      conv("e", 16, "max"),
                      conv("f", 16, "max"),
                      {{"name", "blocked"}, {"type", "concat"}, {"inputs", {"e", "f"}}},
                      {{"name", "sum"}, {"type", "add"}, {"inputs", {"d", "blocked", "max"}}},
                      {{"name", "lrn"}, {"type", "lrn"}, {"alpha", 0.1}},
                      conv("h", 16, "lrn"),
                      conv("i", 16, "h"),
                      {{"name", "drop_i"}, {"type", "dropout"}, {"ratio", 0.25}},
                      {{"name", "once"}, {"type", "add"}, {"inputs", {"h", "drop_i"}}},
                      {{"name", "twice"}, {"type", "add"}, {"inputs", {"once", "h"}}},
                      {{"name", "drop"}, {"type", "dropout"}, {"ratio", 0.25}},
                      {{"name", "g"},
                       {"type", "convolution"},
                       {"outputs", 32},
                       {"kernel", 3},
                       {"pad", 1},
                       {"groups", 2}},
                      {{"name", "average"},
                       {"type", "pooling"},
                       {"pool", "average"},
                       {"kernel", 3},
                       {"stride", 2},
                       {"pad", 1},
                       {"ceil_mode", true},
                       {"count_padding", true}},
                      {{"name", "all"}, {"type", "pooling"}, {"pool", "average"}, {"global", true}},
                      {{"name", "fc"}, {"type", "fully_connected"}, {"outputs", 5}},
                      {{"name", "image_fc"},
                       {"type", "fully_connected"},
                       {"outputs", 5},
                       {"inputs", {"average"}}},
                      {{"name", "both"}, {"type", "add"}, {"inputs", {"fc", "image_fc"}}},
                      {{"name", "loss"}, {"type", "softmax_cross_entropy"}}}}};
  const auto spec = parse_network(net);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return *spec;
}

// The windows that widths() has not, on images of two to four blocks of channels: overhang that
// counts nowhere, padding that does not count, and normalisation that reads neighbouring blocks.
NetSpec windows() {
  const json net = {
      {"name", "windows"},
      {"input", {3, 14, 12}},
      {"layers",
       {conv("a", 64, "input"),
        {{"name", "relu"}, {"type", "relu"}},
        {{"name", "max"},
         {"type", "pooling"},
         {"pool", "max"},
         {"kernel", 3},
         {"stride", 2},
         {"ceil_mode", true}},
        {{"name", "lrn"}, {"type", "lrn"}, {"alpha", 0.5}, {"k", 2}},
        conv("b", 48, "lrn"),
        {{"name", "lrn3"}, {"type", "lrn"}, {"local_size", 3}, {"alpha", 0.5}, {"beta", 0.5}},
        {{"name", "overhang"},
         {"type", "pooling"},
         {"pool", "average"},
         {"kernel", 3},
         {"stride", 2},
         {"ceil_mode", true},
         {"inputs", {"lrn3"}}},
        {{"name", "padded"},
         {"type", "pooling"},
         {"pool", "average"},
         {"kernel", {3, 5}},
         {"stride", 2},
         {"pad", {1, 2}},
         {"ceil_mode", true},
         {"inputs", {"lrn3"}}},
        {{"name", "padded_max"},
         {"type", "pooling"},
         {"pool", "max"},
         {"kernel", 3},
         {"stride", 2},
         {"pad", 1},
         {"ceil_mode", true},
         {"inputs", {"lrn3"}}},
        {{"name", "pad_sum"}, {"type", "add"}, {"inputs", {"padded", "padded_max"}}},
        conv("c", 32, "pad_sum"),
        conv("d", 32, "overhang"),
        {{"name", "fc_c"}, {"type", "fully_connected"}, {"outputs", 5}, {"inputs", {"c"}}},
        {{"name", "fc_d"}, {"type", "fully_connected"}, {"outputs", 5}, {"inputs", {"d"}}},
        {{"name", "both"}, {"type", "add"}, {"inputs", {"fc_c", "fc_d"}}},
        {{"name", "loss"}, {"type", "softmax_cross_entropy"}}}}};
  const auto spec = parse_network(net);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return *spec;
}

// The longest sums are of 3 x 14 x 12 or 64 x 9 terms through ten layers; rounding errors are
// random, so they grow with the square root.
void expect_that_devices_agree(const NetSpec& net) {
  auto reference = NetworkExecutor::create(net, {3, 1, 1}, make_reference_device());
  ASSERT_TRUE(reference.ok()) << reference.status().message();
  initialise(**reference, 5);
  const Batch batch = make_batch(net, 3, 2);
  const ForwardResult wanted_result = run(**reference, batch);
  const auto wanted = all_gradients(**reference);
  for (const int threads : {1, 2}) {
    auto cpu = make_cpu_executor(net, {3, 1, threads});
    ASSERT_TRUE(cpu.ok()) << cpu.status().message();
    initialise(**cpu, 5);
    EXPECT_NEAR(run(**cpu, batch).loss_sum, wanted_result.loss_sum, 1e-5);
    const auto got = all_gradients(**cpu);
    for (std::size_t i = 0; i < got.size(); ++i) {
      double largest = 0.0;
      for (const float g : wanted[i]) largest = std::max(largest, std::abs(static_cast<double>(g)));
      const double tolerance = 10 * std::sqrt(648.0) * testing::kFloatEpsilon * largest;
      EXPECT_TRUE(all_near(got[i], wanted[i], std::max(tolerance, 1e-6)))
          << "layer " << i << ", " << threads << " threads";
    }
    const auto tested = (*cpu)->forward(batch, Phase::kTest, {});
    const auto wanted_test = (*reference)->forward(batch, Phase::kTest, {});
    ASSERT_TRUE(tested.ok() && wanted_test.ok());
    EXPECT_NEAR(tested->loss_sum, wanted_test->loss_sum, 1e-5);
  }
}

TEST(NetworkExecutor, DevicesAgreeWhateverTheirLayouts) {
  {
    SCOPED_TRACE("widths");
    expect_that_devices_agree(widths());
  }
  {
    SCOPED_TRACE("windows");
    expect_that_devices_agree(windows());
  }
}

// What other workers get of a layer that reads an image is in the plain order.
TEST(NetworkExecutor, FactorsArePlain) {
  const NetSpec net = widths();
  auto cpu = make_cpu_executor(net, {3, 1, 1});
  auto reference = NetworkExecutor::create(net, {3, 1, 1}, make_reference_device());
  ASSERT_TRUE(cpu.ok() && reference.ok());
  const auto factors = [&](Executor& executor) {
    initialise(executor, 5);
    const LayerIndex layer(static_cast<std::uint32_t>(net.parameter_layers().size() - 1));
    EXPECT_TRUE(executor.keep_factors(layer, 0).ok());
    run(executor, make_batch(net, 3, 2));
    const LayerSpec& spec = net.layers[net.parameter_layers().back()];
    std::vector<float> gradient(3 * 5),
        input(static_cast<std::size_t>(3 * element_count(spec.input_shape)));
    EXPECT_TRUE(executor.copy_factors(layer, gradient, input).ok());
    return input;
  };
  EXPECT_TRUE(all_near(factors(**cpu), factors(**reference), 1e-4));
}

TEST(NetworkExecutor, RangesAreAlignedAndDisjoint) {
  auto executor = make_cpu_executor(branched(), {2, 1, 1});
  ASSERT_TRUE(executor.ok());
  for (std::uint32_t i = 0; i < 3; ++i) {
    const LayerIndex layer(i);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*executor)->parameters(layer).data()) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*executor)->gradients(layer).data()) % 64, 0u);
    EXPECT_NE((*executor)->parameters(layer).data(), (*executor)->gradients(layer).data());
  }
  EXPECT_EQ((*executor)->parameters(LayerIndex(0)).size(), 3u * 2 * 9 + 3);
}

TEST(MakeCpuExecutor, RefusesWhatCannotRun) {
  const NetSpec net = branched();
  const auto message = [&](const NetSpec& of, const ExecutorOptions& options) {
    return std::string(make_cpu_executor(of, options).status().message());
  };
  EXPECT_THAT(message(net, {0, 1, 1}), HasSubstr("batch size must be from 1 to 1048576, got 0"));
  EXPECT_THAT(message(net, {-5, 1, 1}), HasSubstr("got -5"));
  EXPECT_THAT(message(net, {1 << 21, 1, 1}), HasSubstr("got 2097152"));
  EXPECT_THAT(message(net, {1, 1, -1}), HasSubstr("threads must be from 0 (all cores)"));
  const auto huge = parse_network(json::parse(R"({"name": "huge", "input": [1000000], "layers": [
      {"name": "f", "type": "fully_connected", "outputs": 2000},
      {"name": "g", "type": "fully_connected", "outputs": 1000000},
      {"name": "l", "type": "softmax_cross_entropy"}]})"));
  ASSERT_TRUE(huge.ok()) << huge.status().message();
  const auto result = make_cpu_executor(*huge, {1 << 20, 1, 1});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("network 'huge' with batch size 1048576 needs at least"));
}

}  // namespace
}  // namespace poseidon::network_executor_test
