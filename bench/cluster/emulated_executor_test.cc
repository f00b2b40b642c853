#include "bench/cluster/emulated_executor.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::bench {
namespace {

using std::chrono::milliseconds;

const char* const kNetwork = R"({"name": "two", "input": [1, 4, 4], "layers": [
  {"name": "conv", "type": "convolution", "outputs": 2, "kernel": 3},
  {"name": "relu", "type": "relu"},
  {"name": "fc", "type": "fully_connected", "outputs": 5},
  {"name": "loss", "type": "softmax_cross_entropy"}]})";

const char* const kProfile = R"({"network": "two", "device": "card", "batch_size": 4,
  "device_flops": 1e6, "device_bytes_per_s": 1e6, "layers": [
  {"name": "conv", "type": "convolution", "tensors": [[2, 1, 3, 3], [2]],
   "forward_s": 0.010, "backward_s": 0.020},
  {"name": "fc", "forward_s": 0.001, "backward_s": 0.004}]})";

NetSpec network() { return *parse_network(nlohmann::json::parse(kNetwork)); }

std::string refusal(const std::string& profile) {
  return std::string(parse_device_profile(profile, "profile").status().message());
}

/// The file with one piece of its text replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string text = kProfile;
  text.replace(text.find(from), from.size(), to);
  return text;
}

TEST(DeviceProfile, NamesWhatIsWrong) {
  ASSERT_TRUE(parse_device_profile(kProfile, "profile").ok());
  EXPECT_EQ(refusal(with("\"batch_size\": 4", "\"batch_size\": 0")),
            "profile: batch_size: expected an integer from 1 to 65536, got 0");
  EXPECT_NE(refusal(with("\"forward_s\": 0.001", "\"forward_s\": -1")).find("layers[1].forward_s"),
            std::string::npos);
  EXPECT_NE(refusal(with("device_flops", "device_flop")).find("device_flops"), std::string::npos);
  EXPECT_FALSE(parse_device_profile("[]", "profile").ok());
}

TEST(DeviceProfile, MustBeOfTheNetwork) {
  const auto of_other = parse_device_profile(with("\"fc\"", "\"ip\""), "profile");
  EXPECT_EQ(check_profile_fits(*of_other, network()).message(),
            "layer 1 of the profile of two is ip, of network two it is fc");
}

TEST(DeviceTimeline, IsNeverLateByTheHostsFault) {
  DeviceTimeline timeline;
  EXPECT_EQ(timeline.run_after(milliseconds(100), milliseconds(10)), milliseconds(110));
  // The host says it late, but it could begin at 110.
  EXPECT_EQ(timeline.follow(milliseconds(5)), milliseconds(115));
  // Parameters that came while the device was busy, and after it.
  EXPECT_EQ(timeline.run_after(milliseconds(112), milliseconds(5)), milliseconds(120));
  EXPECT_EQ(timeline.run_after(milliseconds(200), milliseconds(5)), milliseconds(205));
}

class EmulatedExecutorTest : public ::testing::Test {
 protected:
  EmulatedExecutorTest() {
    clock_.set(milliseconds(1000));
    options_.profile = *parse_device_profile(kProfile, "profile");
    options_.slow = 10;
    options_.clock = &clock_;
    options_.sleep_until = [this](Nanoseconds when) { clock_.set(when); };
    batch_.samples = batch_.valid_samples = 4;
  }

  void make() {
    auto made = make_emulated_executor(network(), {.batch_size = 4}, options_);
    ASSERT_TRUE(made.ok()) << made.status();
    executor_ = *std::move(made);
  }

  /// The time, in ms after the beginning, at which each hook was called.
  std::vector<long> iterate(milliseconds wait_for_fc = {}) {
    std::vector<long> times;
    const auto note = [&] {
      times.push_back((clock_.now() - milliseconds(1000)) / milliseconds(1));
    };
    const ExecutionHooks hooks{.before_forward =
                                   [&](LayerIndex layer, const PartArrived&) {
                                     if (layer == LayerIndex(1)) clock_.advance(wait_for_fc);
                                     note();
                                     return absl::OkStatus();
                                   },
                               .after_backward = [&](LayerIndex) { note(); }};
    const auto result = executor_->forward(batch_, Phase::kTrain, hooks);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_DOUBLE_EQ(result->mean_loss(), 1.0);
    EXPECT_TRUE(executor_->backward(hooks).ok());
    return times;
  }

  ManualClock clock_;
  EmulationOptions options_;
  Batch batch_;
  std::unique_ptr<Executor> executor_;
};

TEST_F(EmulatedExecutorTest, TakesTheProfilesTimesSlowed) {
  make();
  EXPECT_EQ(iterate(), (std::vector<long>{0, 100, 150, 350}));
}

TEST_F(EmulatedExecutorTest, WaitsForParametersAndNotForTheHost) {
  make();
  // fc's forward begins at 100 + 30.
  EXPECT_EQ(iterate(milliseconds(30)), (std::vector<long>{0, 130, 180, 380}));
  // The host comes 7 ms late into the next iteration: the device had no gap.
  clock_.advance(milliseconds(7));
  EXPECT_EQ(iterate(), (std::vector<long>{387, 480, 530, 730}));
}

TEST_F(EmulatedExecutorTest, ForwardCanWaitForAllParameters) {
  options_.overlap = Overlap::kBackward;
  make();
  EXPECT_EQ(iterate(milliseconds(30)), (std::vector<long>{0, 30, 180, 380}));
}

TEST_F(EmulatedExecutorTest, GradientsCanWaitForTheEndOfBackward) {
  options_.overlap = Overlap::kNone;
  make();
  EXPECT_EQ(iterate(milliseconds(30)), (std::vector<long>{0, 30, 380, 380}));
}

TEST_F(EmulatedExecutorTest, FactorsCostTheirProductAndLeaveTheGradientOut) {
  make();
  const LayerIndex fc(1);
  EXPECT_EQ(executor_->gradients(fc).size(), 45u);
  ASSERT_TRUE(executor_->keep_factors(fc, 1).ok());
  EXPECT_FALSE(executor_->keep_factors(LayerIndex(0), 1).ok());
  EXPECT_TRUE(executor_->gradients(fc).empty());
  EXPECT_EQ(iterate(), (std::vector<long>{0, 100, 130, 330}));
  // 8 rows, 5 x 8: 640 operations are 0.64 ms, 45 parameters of 20 bytes 0.9 ms; 10 times slower.
  const std::vector<float> gradients(8 * 5), inputs(8 * 8);
  const Nanoseconds begin = clock_.now();
  ASSERT_TRUE(
      executor_
          ->step_from_factors(
              fc,
              {.output_gradients = gradients, .inputs = inputs, .weight_step = {}, .bias_step = {}})
          .ok());
  EXPECT_EQ(clock_.now() - begin, std::chrono::microseconds(15400));
}

TEST_F(EmulatedExecutorTest, WorkersCanShareTheirTensors) {
  const std::string file = ::testing::TempDir() + "emulated_executor_test.shared";
  options_.shared_file = file;
  make();
  executor_->parameters(LayerIndex(1))[7] = 3.0f;
  auto other = make_emulated_executor(network(), {.batch_size = 4}, options_);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ((*other)->parameters(LayerIndex(1))[7], 3.0f);
  EXPECT_EQ((*other)->parameters(LayerIndex(0))[7], 0.0f);
  EXPECT_EQ((*other)->gradients(LayerIndex(1))[7], 0.0f);
  std::remove(file.c_str());
}

TEST_F(EmulatedExecutorTest, RefusesWhatItCannotEmulate) {
  make();
  EXPECT_EQ(executor_->forward(batch_, Phase::kTest, {}).status().code(),
            absl::StatusCode::kUnimplemented);
  batch_.samples = 3;
  EXPECT_EQ(executor_->forward(batch_, Phase::kTrain, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(make_emulated_executor(network(), {.batch_size = 8}, options_).status().message(),
            "the profile of two is of batches of 4, the job's are of 8");
}

}  // namespace
}  // namespace poseidon::bench
