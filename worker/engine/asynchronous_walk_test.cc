// The executor's walk on a device that computes later (late_device.h): hooks in order, as early as
// gradients are there and no earlier, nothing left behind. The tests of executor_test.cc run on it
// too.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/engine/late_device.h"
#include "worker/engine/layer_harness.h"
#include "worker/engine/network_executor.h"

namespace poseidon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LateControl;
using testing::LateDevice;

NetSpec three_layers() {
  const auto net = parse_network(nlohmann::json::parse(R"({
    "name": "three", "input": [2, 5, 5], "layers": [
      {"name": "conv", "type": "convolution", "outputs": 3, "kernel": 3},
      {"name": "relu", "type": "relu"},
      {"name": "fc1", "type": "fully_connected", "outputs": 6},
      {"name": "relu1", "type": "relu"},
      {"name": "fc2", "type": "fully_connected", "outputs": 4},
      {"name": "loss", "type": "softmax_cross_entropy"}]})"));
  EXPECT_TRUE(net.ok()) << net.status();
  return *net;
}

Batch make_batch() {
  Batch batch;
  batch.samples = batch.valid_samples = 2;
  batch.images = testing::values(3, 2 * 50);
  batch.labels = {1, 3};
  return batch;
}

std::unique_ptr<Executor> make(std::unique_ptr<Device> device) {
  auto executor = NetworkExecutor::create(three_layers(), {.batch_size = 2}, std::move(device));
  EXPECT_TRUE(executor.ok()) << executor.status();
  initialise_parameters((*executor)->net(), 5,
                        [&](LayerIndex layer) { return (*executor)->parameters(layer); });
  return *std::move(executor);
}

class AsynchronousWalk : public ::testing::Test {
 protected:
  void forward() {
    const auto result = executor_->forward(make_batch(), Phase::kTrain, {});
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(control_.done, control_.queued) << "forward leaves nothing behind";
  }

  LateControl control_;
  const std::unique_ptr<Executor> executor_ = make(std::make_unique<LateDevice>(&control_));
};

TEST_F(AsynchronousWalk, ASlowDeviceGetsAllWorkBeforeTheFirstLayerIsBack) {
  forward();
  const std::size_t before = control_.queued;
  std::vector<std::uint32_t> layers;
  std::vector<std::size_t> queued, done;
  ExecutionHooks hooks;
  hooks.after_backward = [&](LayerIndex layer) {
    layers.push_back(layer.value());
    queued.push_back(control_.queued - before);
    done.push_back(control_.done - before);
  };
  ASSERT_TRUE(executor_->backward(hooks).ok());
  EXPECT_THAT(layers, ElementsAre(2, 1, 0));
  EXPECT_EQ(queued.front(), queued.back()) << "the walk does not wait for the device";
  EXPECT_THAT(done, ElementsAre(4, 9, queued.back() - 1)) << "nor a layer for those below it";
  EXPECT_EQ(control_.done, control_.queued);
}

TEST_F(AsynchronousWalk, AQuickDeviceGivesLayersBackDuringTheWalk) {
  control_.pieces_per_question = 100;
  forward();
  const std::size_t before = control_.queued;
  std::vector<std::size_t> queued;
  ExecutionHooks hooks;
  hooks.after_backward = [&](LayerIndex) { queued.push_back(control_.queued - before); };
  ASSERT_TRUE(executor_->backward(hooks).ok());
  ASSERT_EQ(queued.size(), 3u);
  // Loss, fc2 and its gradient, between two marks; likewise relu1 and fc1; then the rest.
  EXPECT_EQ(queued[0], 5u);
  EXPECT_EQ(queued[1], 10u);
  EXPECT_GT(queued[2], queued[1]);
}

TEST_F(AsynchronousWalk, GradientsAreThoseOfASynchronousDevice) {
  const auto synchronous = make(make_reference_device());
  ASSERT_TRUE(synchronous->forward(make_batch(), Phase::kTrain, {}).ok());
  ASSERT_TRUE(synchronous->backward({}).ok());
  for (const std::size_t pieces : {0u, 1u, 2u, 5u}) {
    control_.pieces_per_question = pieces;
    forward();
    ExecutionHooks hooks;
    hooks.after_backward = [&](LayerIndex layer) {
      const auto wanted = synchronous->gradients(layer);
      const auto got = executor_->gradients(layer);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), wanted.begin(), wanted.end()))
          << "layer " << layer.value() << ", " << pieces << " pieces";
      std::fill(got.begin(), got.end(), std::numeric_limits<float>::quiet_NaN());
    };
    ASSERT_TRUE(executor_->backward(hooks).ok());
  }
}

// Factors are copied for the host before layers below overwrite anything.
TEST_F(AsynchronousWalk, FactorsComeBackLikeGradients) {
  const auto synchronous = make(make_reference_device());
  for (Executor* executor : {executor_.get(), synchronous.get()}) {
    ASSERT_TRUE(executor->keep_factors(LayerIndex(1), 0).ok());
  }
  const auto factors = [](Executor& executor) {
    std::vector<float> output_gradient(2 * 6), input(2 * 27);
    ExecutionHooks hooks;
    hooks.after_backward = [&](LayerIndex layer) {
      if (layer.value() != 1) return;
      EXPECT_TRUE(executor.copy_factors(layer, output_gradient, input).ok());
    };
    EXPECT_TRUE(executor.forward(make_batch(), Phase::kTrain, {}).ok());
    EXPECT_TRUE(executor.backward(hooks).ok());
    output_gradient.insert(output_gradient.end(), input.begin(), input.end());
    return output_gradient;
  };
  EXPECT_EQ(factors(*executor_), factors(*synchronous));
}

TEST_F(AsynchronousWalk, AnErrorThatComesLateEndsThePassAndLeavesNothingQueued) {
  for (const std::size_t pieces : {0u, 1u, 100u}) {
    control_.pieces_per_question = pieces;
    control_.failing_layer = "fc1";
    forward();
    std::vector<std::uint32_t> layers;
    ExecutionHooks hooks;
    hooks.after_backward = [&](LayerIndex layer) { layers.push_back(layer.value()); };
    const absl::Status status = executor_->backward(hooks);
    EXPECT_THAT(std::string(status.message()), HasSubstr("layer 'fc1' fell off the bus"));
    EXPECT_THAT(layers, ElementsAre(2)) << "no layer whose gradient is not there";
    EXPECT_EQ(control_.done, control_.queued);
    control_.failing_layer = "";
    forward();
    EXPECT_TRUE(executor_->backward({}).ok()) << "the next pass is none the wiser";
  }
}

TEST_F(AsynchronousWalk, AnAbortedForwardLeavesNothingQueued) {
  ExecutionHooks hooks;
  hooks.before_forward = [&](LayerIndex layer) {
    return layer.value() == 2 ? absl::UnavailableError("silent") : absl::OkStatus();
  };
  EXPECT_FALSE(executor_->forward(make_batch(), Phase::kTrain, hooks).ok());
  EXPECT_GT(control_.queued, 0u);
  EXPECT_EQ(control_.done, control_.queued) << "parameters may be written again";
}

TEST_F(AsynchronousWalk, ForwardRunsAheadOfTheDevice) {
  std::vector<std::size_t> done;
  ExecutionHooks hooks;
  hooks.before_forward = [&](LayerIndex) {
    done.push_back(control_.done);
    return absl::OkStatus();
  };
  ASSERT_TRUE(executor_->forward(make_batch(), Phase::kTrain, hooks).ok());
  EXPECT_THAT(done, ElementsAre(0, 0, 0));
}

// conv counts with relu, fc1 with relu1, fc2 with the loss.
TEST_F(AsynchronousWalk, LayersTakeTheDevicesTimeAndNotThatBetweenHooks) {
  using std::chrono::nanoseconds;
  control_.takes = {{"conv", nanoseconds(100)}, {"relu", nanoseconds(20)},
                    {"fc1", nanoseconds(3)},    {"relu1", nanoseconds(1)},
                    {"fc2", nanoseconds(7)},    {"loss", nanoseconds(5)}};
  const auto times = [&] {
    std::vector<std::array<std::int64_t, 3>> found;
    for (const LayerInterval& ran : executor_->device_times()) {
      found.push_back({ran.layer.value(), ran.begin.count(), ran.end.count()});
    }
    return found;
  };
  using Row = std::array<std::int64_t, 3>;
  for (int pass = 0; pass < 2; ++pass) {
    forward();
    EXPECT_THAT(times(), ElementsAre(Row{0, 0, 120}, Row{1, 120, 124}, Row{2, 124, 136}));
    ASSERT_TRUE(executor_->backward({}).ok());
    EXPECT_THAT(times(), ElementsAre(Row{2, 0, 12}, Row{1, 12, 16}, Row{0, 16, 136}));
  }
}

TEST_F(AsynchronousWalk, AFailedPassHasNoTimes) {
  forward();
  control_.failing_layer = "fc1";
  EXPECT_FALSE(executor_->backward({}).ok());
  EXPECT_TRUE(executor_->device_times().empty());
}

TEST(SynchronousWalk, HasNoTimesOfItsOwn) {
  const auto executor = make(make_reference_device());
  ASSERT_TRUE(executor->forward(make_batch(), Phase::kTrain, {}).ok());
  EXPECT_TRUE(executor->device_times().empty());
}

}  // namespace
}  // namespace poseidon
