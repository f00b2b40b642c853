// The executor's walk on a device that computes later (late_device.h): hooks in order, as early as
// gradients are there and no earlier, nothing left behind. The tests of executor_test.cc run on it
// too.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/net/initialise.h"
#include "tests/support/late_device.h"
#include "tests/support/layer_harness.h"
#include "worker/engine/executor/network_executor.h"

namespace poseidon::asynchronous_walk_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LateControl;
using testing::LateDevice;
using ::testing::Not;

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

/// As CopyInterval; layer -1: of a batch.
struct Copy {
  std::string stage;
  int layer = -1;
  std::int64_t bytes = 0, begin = 0, end = 0;
  friend bool operator==(const Copy&, const Copy&) = default;
  friend void PrintTo(const Copy& copy, std::ostream* out) {
    *out << copy.stage << " of " << copy.layer << ": " << copy.bytes << " bytes from " << copy.begin
         << " to " << copy.end;
  }
};

class AsynchronousWalk : public ::testing::Test {
 protected:
  void forward() {
    const auto result = executor_->forward(make_batch(), Phase::kTrain, {});
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(control_.done, control_.queued) << "forward leaves nothing behind";
  }

  std::vector<Copy> copies() const {
    std::vector<Copy> found;
    for (const CopyInterval& copy : executor_->device_times().copies) {
      found.push_back({stage_name(copy.stage),
                       copy.layer ? static_cast<int>(copy.layer->value()) : -1, copy.bytes,
                       copy.begin.count(), copy.end.count()});
    }
    return found;
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
  EXPECT_THAT(done, ElementsAre(6, 11, queued.back())) << "nor a layer for those below it";
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
  // The pass's mark; loss and fc2 between two, and its gradient; likewise relu1 and fc1; the rest.
  EXPECT_EQ(queued[0], 6u);
  EXPECT_EQ(queued[1], 11u);
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
  hooks.before_forward = [&](LayerIndex layer, const PartArrived&) {
    return layer.value() == 2 ? absl::UnavailableError("silent") : absl::OkStatus();
  };
  EXPECT_FALSE(executor_->forward(make_batch(), Phase::kTrain, hooks).ok());
  EXPECT_GT(control_.queued, 0u);
  EXPECT_EQ(control_.done, control_.queued) << "parameters may be written again";
}

// While the layer's other parameters are still awaited; those of before must not be used.
TEST_F(AsynchronousWalk, WhatHasArrivedOfALayerGoesUpAtOnce) {
  const auto expected = executor_->forward(make_batch(), Phase::kTrain, {});
  ASSERT_TRUE(expected.ok());
  std::vector<std::vector<float>> kept;
  for (std::uint32_t l = 0; l < 3; ++l) {
    const std::span<float> parameters = executor_->parameters(LayerIndex(l));
    kept.emplace_back(parameters.begin(), parameters.end());
    std::fill(parameters.begin(), parameters.end(), 9.0f);
  }
  std::vector<std::size_t> uploads;
  ExecutionHooks hooks;
  hooks.before_forward = [&](LayerIndex layer, const PartArrived& part_arrived) {
    EXPECT_TRUE(part_arrived);
    const std::vector<float>& values = kept[layer.value()];
    const std::span<float> parameters = executor_->parameters(layer);
    std::size_t there = 0;
    const std::size_t queued = control_.queued;
    for (const std::size_t elements : {values.size() / 4, values.size() / 2}) {
      std::copy(values.begin() + static_cast<std::ptrdiff_t>(there),
                values.begin() + static_cast<std::ptrdiff_t>(elements),
                parameters.begin() + static_cast<std::ptrdiff_t>(there));
      there = elements;
      const absl::Status status = part_arrived(static_cast<std::int64_t>(elements));
      if (!status.ok()) return status;
    }
    uploads.push_back(control_.queued - queued);
    std::copy(values.begin(), values.end(), parameters.begin());
    return absl::OkStatus();
  };
  executor_->time_passes(PassTiming::kLayersAndCopies);
  const auto got = executor_->forward(make_batch(), Phase::kTrain, hooks);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->loss_sum, expected->loss_sum);
  EXPECT_THAT(uploads, ElementsAre(2, 2, 2));
  for (std::uint32_t l = 0; l < 3; ++l) {
    std::int64_t bytes = 0;
    for (const CopyInterval& copy : executor_->device_times().copies) {
      if (copy.layer == LayerIndex(l)) bytes += copy.bytes;
    }
    EXPECT_EQ(bytes, static_cast<std::int64_t>(kept[l].size() * sizeof(float)));
  }
}

TEST_F(AsynchronousWalk, ForwardRunsAheadOfTheDevice) {
  std::vector<std::size_t> done;
  ExecutionHooks hooks;
  hooks.before_forward = [&](LayerIndex, const PartArrived&) {
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
    for (const LayerInterval& ran : executor_->device_times().layers) {
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

// In one queue with the layers, each copy begins when the work queued before it is done.
TEST_F(AsynchronousWalk, CopiesAreMeasuredWhereSomebodyWantsToKnow) {
  using std::chrono::nanoseconds;
  control_.takes = {{"conv", nanoseconds(100)}, {"fc1", nanoseconds(3)}, {"fc2", nanoseconds(7)}};
  control_.copy_takes = nanoseconds(10);
  forward();
  EXPECT_THAT(copies(), IsEmpty()) << "at first nobody does";
  EXPECT_EQ(control_.marked_copies, 0u);
  executor_->time_passes(PassTiming::kLayersAndCopies);
  for (int pass = 0; pass < 2; ++pass) {
    forward();
    EXPECT_THAT(copies(), ElementsAre(Copy{"upload", -1, 400, 0, 10}, Copy{"upload", -1, 8, 10, 20},
                                      Copy{"upload", 0, (54 + 3) * 4, 20, 30},
                                      Copy{"upload", 1, (162 + 6) * 4, 130, 140},
                                      Copy{"upload", 2, (24 + 4) * 4, 143, 153}));
    ASSERT_TRUE(executor_->backward({}).ok());
    EXPECT_THAT(copies(), ElementsAre(Copy{"download", 2, (24 + 4) * 4, 7, 17},
                                      Copy{"download", 1, (162 + 6) * 4, 20, 30},
                                      Copy{"download", 0, (54 + 3) * 4, 130, 140}));
  }
  const std::size_t marked = control_.marked_copies;
  EXPECT_EQ(marked, 2u * (5 + 3));
  executor_->time_passes(PassTiming::kLayers);
  forward();
  EXPECT_THAT(copies(), IsEmpty());
  EXPECT_EQ(control_.marked_copies, marked);
  EXPECT_EQ(executor_->device_times().layers.size(), 3u);
}

TEST_F(AsynchronousWalk, APassOfWhichNobodyWantsToKnowHasNoTimes) {
  EXPECT_TRUE(executor_->times_itself());
  for (const bool wanted : {false, true, false}) {
    executor_->time_passes(wanted ? PassTiming::kLayers : PassTiming::kNothing);
    for (int pass = 0; pass < 2; ++pass) {
      forward();
      EXPECT_EQ(executor_->device_times().layers.size(), wanted ? 3u : 0u);
      ASSERT_TRUE(executor_->backward({}).ok());
      EXPECT_EQ(executor_->device_times().layers.size(), wanted ? 3u : 0u);
    }
  }
}

TEST_F(AsynchronousWalk, AStagedBatchIsMeasuredInThePassInWhichItGoesUp) {
  executor_->time_passes(PassTiming::kLayersAndCopies);
  const Batch batch = make_batch();
  forward();
  ASSERT_TRUE(executor_->stage(batch).ok());
  ASSERT_TRUE(executor_->backward({}).ok());
  EXPECT_THAT(copies(), Contains(Copy{"upload", -1, 400, 0, 0}));
  ASSERT_TRUE(executor_->forward(batch, Phase::kTrain, {}).ok());
  EXPECT_THAT(copies(), Not(Contains(Copy{"upload", -1, 400, 0, 0}))) << "once";
  EXPECT_EQ(copies().size(), 4u);
}

// Parameters go up once, and no gradient comes down, but the layer's own factors; what is stepped
// with goes up in the pass in which the step is made.
TEST_F(AsynchronousWalk, FactorsAreMeasuredBothWays) {
  executor_->time_passes(PassTiming::kLayersAndCopies);
  ASSERT_TRUE(executor_->keep_factors(LayerIndex(1), 0).ok());
  const auto of_layer_1 = [&] {
    std::vector<Copy> found = copies();
    std::erase_if(found, [](const Copy& copy) { return copy.layer != 1; });
    return found;
  };
  forward();
  EXPECT_THAT(of_layer_1(), ElementsAre(Copy{"upload", 1, (162 + 6) * 4, 0, 0}));
  ASSERT_TRUE(executor_->backward({}).ok());
  EXPECT_THAT(of_layer_1(), ElementsAre(Copy{"download", 1, 2 * 6 * 4, 0, 0},
                                        Copy{"download", 1, 2 * 27 * 4, 0, 0}));
  const std::vector<float> gradients(4 * 6, 0.5F), inputs(4 * 27, 0.25F);
  ExecutionHooks hooks;
  hooks.before_forward = [&](LayerIndex layer, const PartArrived&) {
    if (layer.value() != 1) return absl::OkStatus();
    control_.copy_takes = Nanoseconds(10);
    const absl::Status measured = executor_->measure_factors(layer, gradients, inputs).status();
    return measured.ok() ? executor_->step_from_factors(
                               layer, {.output_gradients = gradients, .inputs = inputs})
                         : measured;
  };
  ASSERT_TRUE(executor_->forward(make_batch(), Phase::kTrain, hooks).ok());
  // The origin is queued behind what goes past the line.
  std::vector<Copy> factors = of_layer_1();
  ASSERT_EQ(factors.size(), 2u);
  for (const Copy& copy : factors) {
    EXPECT_EQ(copy.stage, "upload_factors");
    EXPECT_EQ(copy.bytes, 4 * (6 + 27) * 4);
    EXPECT_EQ(copy.end - copy.begin, 10);
  }
  EXPECT_EQ(factors[0].end, factors[1].begin);
}

TEST_F(AsynchronousWalk, MoreCopiesThanAPassHasAreLeftOut) {
  executor_->time_passes(PassTiming::kLayersAndCopies);
  ASSERT_TRUE(executor_->keep_factors(LayerIndex(1), 0).ok());
  const std::vector<float> gradients(4 * 6, 0.5F), inputs(4 * 27, 0.25F);
  ExecutionHooks hooks;
  hooks.before_forward = [&](LayerIndex layer, const PartArrived&) {
    absl::Status status;
    for (int i = 0; i < 100; ++i) {
      status.Update(executor_->measure_factors(LayerIndex(1), gradients, inputs).status());
    }
    return layer.value() == 0 ? status : absl::OkStatus();
  };
  ASSERT_TRUE(executor_->forward(make_batch(), Phase::kTrain, hooks).ok());
  EXPECT_EQ(copies().size(), 3u * 4 + 1 + 1);
  ASSERT_TRUE(executor_->backward({}).ok());
  EXPECT_EQ(copies().size(), 4u);
}

TEST_F(AsynchronousWalk, AFailedPassHasNoTimes) {
  executor_->time_passes(PassTiming::kLayersAndCopies);
  forward();
  control_.failing_layer = "fc1";
  EXPECT_FALSE(executor_->backward({}).ok());
  EXPECT_TRUE(executor_->device_times().layers.empty());
  EXPECT_TRUE(executor_->device_times().copies.empty());
}

TEST(SynchronousWalk, HasNoTimesOfItsOwn) {
  const auto executor = make(make_reference_device());
  EXPECT_FALSE(executor->times_itself());
  executor->time_passes(PassTiming::kLayersAndCopies);
  ASSERT_TRUE(executor->forward(make_batch(), Phase::kTrain, {}).ok());
  EXPECT_TRUE(executor->device_times().layers.empty());
  EXPECT_TRUE(executor->device_times().copies.empty());
}

}  // namespace
}  // namespace poseidon::asynchronous_walk_test
