// The device functions that a training loop uses besides computing, and several GPUs in one
// machine.

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/net/initialise.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/device_under_test.h"
#include "tests/gpu/training.h"
#include "worker/engine/executor/network_executor.h"
#include "worker/engine/plugin/device_plugin.h"
#include "worker/engine/plugin/open_engine.h"

namespace poseidon::loop_test {
namespace {

using testing::EmulatedCounters;
using ::testing::HasSubstr;
using testing::kPrecisions;
using ::testing::MatchesRegex;
using testing::Training;

constexpr std::int64_t kBatch = 4;

/// Every kind of layer with memory of its own: convolutions with and without a bias, running
/// statistics, masks, two fully connected layers.
NetSpec network() {
  const auto net = parse_network(nlohmann::json::parse(R"({
    "name": "loop", "input": [3, 12, 12], "layers": [
      {"name": "conv1", "type": "convolution", "outputs": 8, "kernel": 3, "pad": 1, "bias": false},
      {"name": "bn1", "type": "batch_norm"},
      {"name": "relu1", "type": "relu"},
      {"name": "pool1", "type": "pooling", "pool": "max", "kernel": 2, "stride": 2},
      {"name": "conv2", "type": "convolution", "outputs": 8, "kernel": 3, "pad": 1},
      {"name": "relu2", "type": "relu"},
      {"name": "drop2", "type": "dropout", "ratio": 0.3},
      {"name": "norm2", "type": "lrn"},
      {"name": "fc1", "type": "fully_connected", "outputs": 20},
      {"name": "relu3", "type": "relu"},
      {"name": "drop3", "type": "dropout"},
      {"name": "fc2", "type": "fully_connected", "outputs": 5},
      {"name": "loss", "type": "softmax_cross_entropy"}]})"));
  EXPECT_TRUE(net.ok()) << net.status();
  return net.ok() ? *net : NetSpec{};
}

/// As a worker of two trains: fully connected layers from both workers' factors (which are equal
/// here), all else by a step on the host.
class Loop {
 public:
  static std::unique_ptr<Loop> create(const NetSpec& net, std::unique_ptr<Device> device) {
    auto executor = NetworkExecutor::create(net, {.batch_size = kBatch}, std::move(device));
    if (!executor.ok()) {
      ADD_FAILURE() << executor.status();
      return nullptr;
    }
    initialise_parameters(net, 3, [&](LayerIndex layer) { return (*executor)->parameters(layer); });
    return std::unique_ptr<Loop>(new Loop(net, *std::move(executor)));
  }

  void iterate(const Batch& batch, const Batch& next) {
    ExecutionHooks hooks;
    hooks.before_forward = [this](LayerIndex layer, const PartArrived& part_arrived) {
      return before_forward(layer, part_arrived);
    };
    hooks.after_backward = [this](LayerIndex layer) { after_backward(layer); };
    const auto result = executor_->forward(batch, Phase::kTrain, hooks);
    absl::Status status = result.status();
    if (status.ok()) status = executor_->stage(next);
    if (status.ok()) status = executor_->backward(hooks);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(std::isfinite(result->loss_sum));
    ++iteration_;
  }

  void time_passes(PassTiming wanted) { executor_->time_passes(wanted); }

  /// What comes now and then: a digest, what is held for recovery and a piece of it for a
  /// checkpoint, a test, the running statistics.
  void look_after(const Batch& test) {
    const std::array<StateRange, 2> ranges = {StateRange{.slot = 0, .elements = 7},
                                              StateRange{.slot = 1, .elements = 7}};
    std::array<float, 7> piece{};
    for (const auto& [layer, stack] : stacks_) {
      const LayerIndex index(layer);
      ASSERT_TRUE(executor_->fetch_parameters(index).ok());
      ASSERT_TRUE(executor_->hold_state(index, ranges).ok());
      ASSERT_TRUE(executor_->read_held_state(index, ranges[1], piece).ok());
      ASSERT_TRUE(executor_->measure_parameters(index).ok());
    }
    ASSERT_TRUE(executor_->forward(test, Phase::kTest, {}).ok());
    ASSERT_TRUE(executor_->read_statistics(statistics_).ok());
  }

 private:
  struct Stack {
    FloatBuffer output_gradients, inputs;
  };

  Loop(const NetSpec& net, std::unique_ptr<Executor> executor)
      : executor_(std::move(executor)),
        statistics_(static_cast<std::size_t>(net.statistics_count())) {
    OptimizerSpec optimizer;
    optimizer.learning_rate = 0.01;
    optimizer.momentum = 0.9;
    step_ = make_optimizer_step(optimizer, 0, 0.5f);
    std::uint32_t layer = 0;
    for (const std::size_t index : net.parameter_layers()) {
      const LayerSpec& spec = net.layers[index];
      if (spec.type == LayerType::kFullyConnected) {
        const absl::Status kept = executor_->keep_factors(LayerIndex(layer), 1);
        EXPECT_TRUE(kept.ok()) << kept;
        auto gradients = executor_->allocate_factors(2 * kBatch * spec.output_shape.front());
        auto inputs = executor_->allocate_factors(2 * kBatch * element_count(spec.input_shape));
        EXPECT_TRUE(gradients.ok() && inputs.ok());
        if (gradients.ok() && inputs.ok()) stacks_[layer] = {*gradients, *inputs};
      }
      ++layer;
    }
  }

  absl::Status before_forward(LayerIndex layer, const PartArrived& part_arrived) {
    const auto found = stacks_.find(layer.value());
    if (found == stacks_.end() && part_arrived) {
      return part_arrived(static_cast<std::int64_t>(executor_->parameters(layer).size() / 2));
    }
    if (found == stacks_.end() || iteration_ == 0) return absl::OkStatus();
    Stack& stack = found->second;
    const absl::Status measured =
        executor_->measure_factors(layer, stack.output_gradients.floats(), stack.inputs.floats())
            .status();
    if (!measured.ok()) return measured;
    return executor_->step_from_factors(layer, {.output_gradients = stack.output_gradients.floats(),
                                                .inputs = stack.inputs.floats(),
                                                .weight_step = step_,
                                                .bias_step = step_});
  }

  void after_backward(LayerIndex layer) {
    const auto found = stacks_.find(layer.value());
    if (found == stacks_.end()) {
      const std::span<float> parameters = executor_->parameters(layer);
      const std::span<float> gradients = executor_->gradients(layer);
      for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] -= 0.01f * gradients[i];
      return;
    }
    const std::span<float> gradients = found->second.output_gradients.floats();
    const std::span<float> inputs = found->second.inputs.floats();
    for (std::size_t worker = 0; worker < 2; ++worker) {
      const absl::Status copied = executor_->copy_factors(
          layer, gradients.subspan(worker * gradients.size() / 2, gradients.size() / 2),
          inputs.subspan(worker * inputs.size() / 2, inputs.size() / 2));
      EXPECT_TRUE(copied.ok()) << copied;
    }
  }

  const std::unique_ptr<Executor> executor_;
  std::vector<float> statistics_;
  OptimizerStep step_;
  std::map<std::uint32_t, Stack> stacks_;  ///< by LayerIndex
  int iteration_ = 0;
};

class GpuLoop : public testing::PrecisionTest {
 protected:
  /// Trained on another GPU than the one under test.
  std::vector<float> trained_on(int ordinal) const {
    auto device = make_plugin_device("cuda", {.ordinal = ordinal, .precision = GetParam()});
    EXPECT_TRUE(device.ok()) << device.status();
    if (!device.ok()) return {};
    EXPECT_THAT((*device)->name(), HasSubstr(absl::StrCat("cuda:", ordinal, " (")));
    OptimizerSpec optimizer;
    optimizer.learning_rate = 0.01;
    const auto training = Training::create(network(), kBatch, *std::move(device), optimizer);
    if (training == nullptr) return {};
    for (std::uint64_t i = 0; i < 3; ++i) {
      training->iterate(testing::random_batch(network(), kBatch, 70 + i));
    }
    return training->parameters();
  }
};

TEST_P(GpuLoop, WarmIterationsAllocateNothing) {
  const auto counters = EmulatedCounters::of(*device_);
  if (!counters) GTEST_SKIP() << "only an emulated GPU counts them";
  const NetSpec net = network();
  std::vector<Batch> batches;
  for (std::uint64_t i = 0; i < 8; ++i) batches.push_back(testing::random_batch(net, kBatch, i));
  const unsigned long strays = counters->stray_calls();
  auto loop = Loop::create(net, make_device());
  ASSERT_NE(loop, nullptr);
  for (std::size_t i = 0; i < 2; ++i) {
    loop->iterate(batches[i], batches[i + 1]);
    loop->look_after(batches[7]);
  }
  const std::string calls = counters->setup_calls();
  EXPECT_THAT(calls, HasSubstr("cudaMalloc "));
  loop->iterate(batches[2], batches[3]);  // takes what a test has put into one of two buffers
  const unsigned long pageable = counters->pageable_copies();
  for (std::size_t i = 3; i < 6; ++i) {
    // A trace begins, and ends.
    loop->time_passes(i % 2 == 0 ? PassTiming::kLayersAndCopies : PassTiming::kLayers);
    loop->iterate(batches[i], batches[i + 1]);
  }
  EXPECT_EQ(counters->pageable_copies(), pageable) << "what comes and goes is pinned";
  loop->look_after(batches[7]);
  loop->iterate(batches[6], batches[7]);
  EXPECT_EQ(counters->setup_calls(), calls);
  // It ends on the transport's thread, say, which then must not open the first GPU.
  std::thread([&] { loop.reset(); }).join();
  EXPECT_EQ(counters->stray_calls(), strays);
}

TEST_P(GpuLoop, TimesCostNothingWhereNobodyAsks) {
  const auto counters = EmulatedCounters::of(*device_);
  if (!counters) GTEST_SKIP() << "only an emulated GPU counts them";
  const NetSpec net = network();
  const auto loop = Loop::create(net, make_device());
  ASSERT_NE(loop, nullptr);
  const Batch batch = testing::random_batch(net, kBatch, 1);
  const auto calls = [&](PassTiming wanted) {
    loop->time_passes(wanted);
    const unsigned long before = counters->timing_calls();
    loop->iterate(batch, batch);
    return counters->timing_calls() - before;
  };
  EXPECT_EQ(calls(PassTiming::kNothing), 0u);
  // Both passes' origins; of both passes of each layer two events, recorded and asked.
  EXPECT_EQ(calls(PassTiming::kLayers), 2 + 2 * net.parameter_layers().size() * 4);
  EXPECT_GT(calls(PassTiming::kLayersAndCopies), calls(PassTiming::kLayers));
  EXPECT_EQ(calls(PassTiming::kNothing), 0u);
}

TEST_P(GpuLoop, EachGpuComputesTheSameAloneAndBesideTheOther) {
  const auto count = plugin_device_count("cuda");
  if (!device_->name().starts_with("cuda") || !count.ok() || *count < 2) {
    GTEST_SKIP() << "needs two GPUs";
  }
  if (*plugin_device_name("cuda", 0) != *plugin_device_name("cuda", 1)) {
    GTEST_SKIP() << "needs two GPUs of one kind";
  }
  const std::vector<float> wanted = trained_on(0);
  EXPECT_EQ(trained_on(1), wanted);
  std::array<std::vector<float>, 2> beside;
  std::vector<std::thread> threads;
  for (int ordinal = 0; ordinal < 2; ++ordinal) {
    threads.emplace_back(
        [&, ordinal] { beside[static_cast<std::size_t>(ordinal)] = trained_on(ordinal); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : beside) EXPECT_EQ(result, wanted);
}

TEST_P(GpuLoop, AGpuThatIsNotThereIsRefusedByName) {
  const auto count = plugin_device_count("cuda");
  if (!device_->name().starts_with("cuda") || !count.ok()) GTEST_SKIP() << "needs a GPU";
  const auto last = open_engine(absl::StrCat("cuda:", *count - 1));
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_THAT(last->device, HasSubstr(absl::StrCat("cuda:", *count - 1, " (")));
  EXPECT_THAT(last->gpu_bus_id, MatchesRegex("[0-9a-f]+:[0-9a-f]+:[0-9a-f]+\\.[0-9]"));
  const absl::Status refused = open_engine(absl::StrCat("cuda:", *count)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(absl::StrCat("--device cuda:", *count,
                                     ": this machine has CUDA devices 0 to ", *count - 1)));
}

INSTANTIATE_TEST_SUITE_P(Precisions, GpuLoop, ::testing::ValuesIn(kPrecisions),
                         testing::precision_name);

}  // namespace
}  // namespace poseidon::loop_test
