// Parameters and optimizer state of layers that go by factors: their place, the number of copies,
// and held versions.

#include "worker/engine/executor/factor_memory.h"
#include "models/net/initialise.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/layer_harness.h"
#include "tests/twins/reference_device/reference_device.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/executor/forwarding_device.h"
#include "worker/engine/executor/network_executor.h"

namespace poseidon::factor_memory_test {
namespace {

using testing::all_near;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::values;

struct Travelled {
  std::int64_t up = 0, down = 0;  ///< bytes
};

/// With memory of its own, and a count of what crosses the bus.
class CountingDevice final : public ForwardingDevice {
 public:
  explicit CountingDevice(Travelled* travelled)
      : ForwardingDevice(make_reference_device()), travelled_(travelled) {}
  absl::Status upload(void* device, const void* host, std::int64_t bytes) override {
    travelled_->up += bytes;
    return inner().upload(device, host, bytes);
  }
  absl::Status download(void* host, const void* device, std::int64_t bytes) override {
    travelled_->down += bytes;
    return inner().download(host, device, bytes);
  }
  absl::Status fetch(void* host, const void* device, std::int64_t bytes) override {
    return download(host, device, bytes);
  }
  absl::Status start_upload(void* device, const void* host, std::int64_t bytes,
                            const CopyMarks& /*marks*/) override {
    return upload(device, host, bytes);
  }
  absl::Status start_download(void* host, const void* device, std::int64_t bytes,
                              DeviceTicket& /*ticket*/, const CopyMarks& /*marks*/) override {
    return bytes == 0 ? absl::OkStatus() : download(host, device, bytes);
  }

 private:
  Travelled* const travelled_;
};

/// Ten parameters and two slots; on the host they are 0 to 9.
class FactorMemoryTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    device_ = GetParam() ? make_cpu_device(1) : make_reference_device();
    for (std::size_t i = 0; i < host_.size(); ++i) host_[i] = static_cast<float>(i);
    auto elsewhere = device_->allocate(static_cast<std::int64_t>(sizeof(host_)));
    ASSERT_TRUE(elsewhere.ok());
    elsewhere_ = *std::move(elsewhere);
    float* const parameters =
        device_->shares_host_memory() ? host_.data() : static_cast<float*>(elsewhere_.get());
    auto memory = FactorMemory::create(device_.get(), host_, parameters, /*optimizer_slots=*/2);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
  }
  std::vector<float> read(const StateRange& range) {
    std::vector<float> values(static_cast<std::size_t>(range.elements));
    EXPECT_TRUE(memory_->read(range, values).ok());
    return values;
  }
  void write(const StateRange& range, const std::vector<float>& values) {
    EXPECT_TRUE(memory_->write(range, values).ok());
  }

  std::unique_ptr<Device> device_;
  std::array<float, 10> host_{};
  DeviceMemory elsewhere_{nullptr, nullptr};
  std::unique_ptr<FactorMemory> memory_;
};

TEST_P(FactorMemoryTest, ReadsAndWritesPartsOfEachSlot) {
  EXPECT_THAT(read({.slot = 0, .offset = 3, .elements = 2}), ElementsAre(3, 4));
  EXPECT_THAT(read({.slot = 1, .offset = 0, .elements = 10}), Each(0.0f));
  EXPECT_THAT(read({.slot = 2, .offset = 0, .elements = 10}), Each(0.0f));
  write({.slot = 0, .offset = 3, .elements = 2}, {30, 40});
  EXPECT_EQ(host_[4], 40.0f) << "until the device has them, the host's memory is what counts";
  write({.slot = 1, .offset = 9, .elements = 1}, {7});
  ASSERT_TRUE(memory_->bring_up().ok());
  EXPECT_THAT(read({.slot = 0, .offset = 2, .elements = 4}), ElementsAre(2, 30, 40, 5));
  EXPECT_THAT(read({.slot = 1, .offset = 8, .elements = 2}), ElementsAre(0, 7));
}

TEST_P(FactorMemoryTest, TheHostHasOldValuesUntilItAsks) {
  ASSERT_TRUE(memory_->bring_up().ok());
  memory_->parameters()[5] = 50.0f;  // plain memory on both devices
  memory_->stepped();
  write({.slot = 0, .offset = 6, .elements = 1}, {60});
  EXPECT_EQ(host_[5], device_->shares_host_memory() ? 50.0f : 5.0f);
  ASSERT_TRUE(memory_->fetch_parameters().ok());
  EXPECT_EQ(host_[5], 50.0f);
  EXPECT_EQ(host_[6], 60.0f);
  ASSERT_TRUE(memory_->bring_up().ok());
  EXPECT_THAT(read({.slot = 0, .offset = 5, .elements = 2}), ElementsAre(50, 60));
}

TEST_P(FactorMemoryTest, WhatIsHeldStaysAsItWas) {
  const std::vector<StateRange> ranges = {{.slot = 0, .offset = 2, .elements = 3},
                                          {.slot = 1, .offset = 0, .elements = 2}};
  const auto held = [&](std::size_t i) {
    std::vector<float> values(static_cast<std::size_t>(ranges[i].elements));
    EXPECT_TRUE(memory_->read_held(ranges[i], values).ok());
    return values;
  };
  ASSERT_TRUE(memory_->hold(ranges).ok());
  write({.slot = 0, .offset = 0, .elements = 4}, {9, 9, 9, 9});
  write({.slot = 1, .offset = 1, .elements = 1}, {8});
  EXPECT_THAT(held(0), ElementsAre(2, 3, 4));
  EXPECT_THAT(held(1), ElementsAre(0, 0));
  ASSERT_TRUE(memory_->hold(ranges).ok());
  EXPECT_THAT(held(0), ElementsAre(9, 9, 4));
  EXPECT_THAT(held(1), ElementsAre(0, 8));

  std::vector<float> other(2);
  EXPECT_TRUE(absl::IsNotFound(memory_->read_held({.slot = 0, .offset = 2, .elements = 2}, other)));
  const std::vector<StateRange> others = {{.slot = 2, .offset = 1, .elements = 2}};
  ASSERT_TRUE(memory_->hold(others).ok());
  EXPECT_TRUE(memory_->read_held(others[0], other).ok());
  std::vector<float> gone(3);
  EXPECT_TRUE(absl::IsNotFound(memory_->read_held(ranges[0], gone)));
}

INSTANTIATE_TEST_SUITE_P(Devices, FactorMemoryTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "cpu" : "reference"; });

// A layer of a gigabyte would take longer on the bus than all else together.
TEST(FactorMemory, AStepMovesNoParametersBetweenHostAndDevice) {
  const auto net = parse_network(nlohmann::json::parse(R"({
    "name": "one", "input": [300], "layers": [
      {"name": "fc", "type": "fully_connected", "outputs": 200},
      {"name": "loss", "type": "softmax_cross_entropy"}]})"));
  ASSERT_TRUE(net.ok()) << net.status();
  Travelled travelled;
  auto ours = NetworkExecutor::create(*net, {.batch_size = 2},
                                      std::make_unique<CountingDevice>(&travelled));
  auto cpu = NetworkExecutor::create(*net, {.batch_size = 2}, make_cpu_device(1));
  OptimizerSpec sgd;
  sgd.momentum = 0.9;
  const LayerIndex fc(0);
  const std::int64_t parameters = (200 * 300 + 200) * 4;
  const std::int64_t factors = 2 * (200 + 300) * 4;
  Batch batch;
  batch.samples = batch.valid_samples = 2;
  batch.images = values(5, 2 * 300);
  batch.labels = {1, 7};
  const StateRange some{.slot = 1, .offset = 40, .elements = 5};
  for (Executor* executor : {ours->get(), cpu->get()}) {
    initialise_parameters(*net, 3, [&](LayerIndex l) { return executor->parameters(l); });
    ASSERT_TRUE(executor->keep_factors(fc, 1).ok());
    for (Iteration i = 0; i < 3; ++i) {
      travelled = {};
      ASSERT_TRUE(executor->forward(batch, Phase::kTrain, {}).ok());
      ASSERT_TRUE(executor->backward({}).ok());
      std::vector<float> gradient(2 * 200), input(2 * 300);
      ASSERT_TRUE(executor->copy_factors(fc, gradient, input).ok());
      ASSERT_TRUE(executor->hold_state(fc, std::vector{some}).ok());
      const OptimizerStep step = make_optimizer_step(sgd, i, 1.0f);
      ASSERT_TRUE(executor
                      ->step_from_factors(fc, {.output_gradients = gradient,
                                               .inputs = input,
                                               .weight_step = step,
                                               .bias_step = step})
                      .ok());
      if (executor == cpu->get()) continue;
      // The images, labels and results of a batch, and its factors.
      EXPECT_LT(travelled.up, factors + (i == 0 ? parameters : 0)) << "iteration " << i;
      EXPECT_LT(travelled.down, 2 * factors) << "iteration " << i;
    }
    ASSERT_TRUE(executor->fetch_parameters(fc).ok());
  }
  const auto all = [&](Executor& executor) {
    const auto stepped = executor.parameters(fc);
    std::vector<float> found(stepped.begin(), stepped.end());
    std::vector<float> slot(5), held(5);
    EXPECT_TRUE(executor.read_state(fc, some, slot).ok());
    EXPECT_TRUE(executor.read_held_state(fc, some, held).ok());
    EXPECT_NE(slot, held);
    found.insert(found.end(), slot.begin(), slot.end());
    found.insert(found.end(), held.begin(), held.end());
    return found;
  };
  EXPECT_TRUE(all_near(all(**ours), all(**cpu), 1e-5));
}

}  // namespace
}  // namespace poseidon::factor_memory_test
