#include "worker/measure_compute.h"

#include <cmath>

#include "common/job/job.h"
#include "gtest/gtest.h"
#include "worker/engine/cpu/cpu_device.h"

namespace poseidon::measure_compute_test {
namespace {

constexpr const char* kNetwork = R"({"name": "small", "input": [1, 8, 8], "layers": [
  {"name": "conv", "type": "convolution", "outputs": 4, "kernel": 3},
  {"name": "relu", "type": "relu"},
  {"name": "fc1", "type": "fully_connected", "outputs": 32},
  {"name": "fc2", "type": "fully_connected", "outputs": 5},
  {"name": "loss", "type": "softmax_cross_entropy"}]})";

class MeasureComputeTest : public ::testing::Test {
 protected:
  absl::StatusOr<ComputeSpeed> measure(const std::string& network, Nanoseconds max_time) {
    const NetSpec net = *parse_network(nlohmann::json::parse(network));
    executor_ = *make_cpu_executor(net, {.batch_size = 4, .threads = 1});
    return measure_compute(executor_, {.batch_size = 4,
                                       .workers = 3,
                                       .iterations = 10,
                                       .optimizer = {},
                                       .max_time = max_time,
                                       .clock = &clock_,
                                       .cancelled = &cancelled_});
  }
  SystemClock clock_;
  std::atomic<bool> cancelled_{false};
  std::shared_ptr<Executor> executor_;  ///< the last one
};

TEST_F(MeasureComputeTest, EveryParameterLayerTakesTimeAndAProductHasASpeed) {
  for (const Nanoseconds max_time : {Nanoseconds(0), Nanoseconds(std::chrono::seconds(60))}) {
    const auto speed = measure(kNetwork, max_time);
    ASSERT_TRUE(speed.ok()) << speed.status();
    ASSERT_EQ(speed->layers.size(), 3u);
    EXPECT_EQ(speed->layers[0].name, "conv");
    EXPECT_EQ(speed->layers[2].name, "fc2");
    for (const LayerTimes& layer : speed->layers) {
      EXPECT_GT(layer.forward_s, 0.0) << layer.name;
      EXPECT_GT(layer.backward_s, 0.0) << layer.name;
    }
    EXPECT_GT(speed->device_ops_per_s, 0.0);
    EXPECT_TRUE(std::isfinite(speed->device_ops_per_s));
  }
}

TEST_F(MeasureComputeTest, WithoutAFullyConnectedLayerThereIsNoProduct) {
  const auto speed = measure(R"({"name": "none", "input": [1, 3, 3], "layers": [
    {"name": "conv", "type": "convolution", "outputs": 5, "kernel": 3},
    {"name": "loss", "type": "softmax_cross_entropy"}]})",
                             Nanoseconds(0));
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_EQ(speed->device_ops_per_s, 0.0);
}

TEST_F(MeasureComputeTest, StopsWhenAsked) {
  cancelled_ = true;
  EXPECT_TRUE(absl::IsCancelled(measure(kNetwork, Nanoseconds(0)).status()));
  for (const float value : executor_->parameters(LayerIndex(2))) {
    ASSERT_EQ(value, 0.0f) << "initial values of a large layer take seconds";
  }
}

}  // namespace
}  // namespace poseidon::measure_compute_test
