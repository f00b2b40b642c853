// Copies to and from the device during computation, as a trace shows them: every layer's copies
// exist, none begins before its dependency, and computation continues beside them, which would fail
// if anything waited for the whole device.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/device_under_test.h"
#include "tests/gpu/training.h"
#include "worker/engine/executor/forwarding_device.h"
#include "worker/engine/executor/network_executor.h"

namespace poseidon::copies_test {
namespace {

using ::testing::IsSupersetOf;
using testing::kPrecisions;

/// A GPU computes on few images for a shorter time than the host needs to queue a copy beside it.
constexpr std::int64_t kBatch = 6, kGpuBatch = 512;
/// LeNet's: conv1, conv2, ip1 and ip2.
constexpr std::uint32_t kLayers = 4, kFactorLayer = 3;
/// Within which every copy has been seen beside computing. Most have in the first.
constexpr int kMostIterations = 50;

/// When, by the host's clock, the device was at the moment from which its times are counted.
struct Origin {
  Nanoseconds earliest{0}, latest{0};
};

class OriginDevice final : public ForwardingDevice {
 public:
  OriginDevice(std::unique_ptr<Device> inner, Origin* origin)
      : ForwardingDevice(std::move(inner)), origin_(origin) {}
  void begin_pass() override {
    inner().begin_pass();
    is_next_ = true;
  }
  absl::Status mark(DeviceMark& mark) override {
    if (!std::exchange(is_next_, false)) return inner().mark(mark);
    origin_->earliest = clock_.now();
    absl::Status status = inner().mark(mark);
    status.Update(inner().finish());
    origin_->latest = clock_.now();
    return status;
  }

 private:
  SystemClock clock_;
  Origin* const origin_;
  bool is_next_ = false;
};

class GpuCopies : public testing::PrecisionTest {
 protected:
  void SetUp() override {
    PrecisionTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const auto mark = device_->make_mark();
    ASSERT_TRUE(mark.ok()) << mark.status();
    has_clock_ = *mark != nullptr;
    if (has_clock_ && !testing::EmulatedCounters::of(*device_)) batch_size_ = kGpuBatch;
    const auto net = resolve_network("lenet", ".");
    ASSERT_TRUE(net.ok()) << net.status();
    training_ = testing::Training::create(*net, batch_size_,
                                          std::make_unique<OriginDevice>(make_device(), &origin_),
                                          OptimizerSpec{.learning_rate = 0.01});
    ASSERT_NE(training_, nullptr);
    executor_ = &training_->executor();
    for (std::uint64_t i = 0; i < batches_.size(); ++i) {
      batches_[i] = testing::random_batch(*net, batch_size_, 40 + i);
    }
    for (const std::size_t layer : net->parameter_layers()) {
      bytes_.push_back(net->layers[layer].parameter_count() * kFloatBytes);
      const std::int64_t row = element_count(net->layers[layer].output_shape) +
                               element_count(net->layers[layer].input_shape);
      factor_bytes_.push_back(batch_size_ * row * kFloatBytes);
    }
    const absl::Status kept = executor_->keep_factors(LayerIndex(kFactorLayer), 0);
    ASSERT_TRUE(kept.ok()) << kept;
    const LayerSpec& last = net->layers[net->parameter_layers()[kFactorLayer]];
    output_gradients_.resize(
        static_cast<std::size_t>(batch_size_ * element_count(last.output_shape)));
    inputs_.resize(static_cast<std::size_t>(batch_size_ * element_count(last.input_shape)));
  }

  /// Every other iteration parameters are late, and the layers before have begun to compute.
  ExecutionHooks hooks(int iteration) {
    return {.before_forward =
                [this, iteration](LayerIndex layer, const PartArrived&) {
                  if (iteration % 2 == 1)
                    std::this_thread::sleep_for(std::chrono::microseconds(300));
                  ready_[layer.value()] = clock_.now();
                  if (layer.value() != kFactorLayer || iteration == 0) return absl::OkStatus();
                  return executor_->step_from_factors(
                      layer, {.output_gradients = output_gradients_, .inputs = inputs_});
                },
            .after_backward = [this](LayerIndex layer) { back_[layer.value()] = clock_.now(); }};
  }

  std::vector<CopyInterval> copies(Stage stage, std::uint32_t layer) const {
    std::vector<CopyInterval> found;
    for (const CopyInterval& copy : executor_->device_times().copies) {
      if (copy.stage == stage && copy.layer == LayerIndex(layer)) found.push_back(copy);
    }
    return found;
  }

  void check_both_passes() {
    std::map<Stage, Nanoseconds> last;
    for (const CopyInterval& copy : executor_->device_times().copies) {
      EXPECT_LE(copy.begin, copy.end);
      const auto before = last.find(copy.stage);
      if (before != last.end()) {
        EXPECT_GE(copy.begin, before->second) << stage_name(copy.stage) << ": two at a time";
      }
      last[copy.stage] = copy.end;
    }
  }

  void check_forward(int iteration) {
    check_both_passes();
    std::int64_t labels = 0;
    for (const CopyInterval& copy : executor_->device_times().copies) {
      labels += !copy.layer && copy.bytes == batch_size_ * 4 ? 1 : 0;
    }
    EXPECT_EQ(labels, 1);
    for (const LayerInterval& ran : executor_->device_times().layers) {
      const std::uint32_t layer = ran.layer.value();
      const auto up = copies(Stage::kUpload, layer);
      const auto factors = copies(Stage::kUploadFactors, layer);
      const bool by_factors = layer == kFactorLayer && iteration > 0;
      ASSERT_EQ(up.size(), by_factors ? 0u : 1u) << "layer " << layer;
      ASSERT_EQ(factors.size(), by_factors ? 1u : 0u) << "layer " << layer;
      const CopyInterval& copy = by_factors ? factors.front() : up.front();
      EXPECT_EQ(copy.bytes, by_factors ? factor_bytes_[layer] : bytes_[layer]);
      EXPECT_GE(ran.begin, copy.end) << "layer " << layer << " computes with what it has not";
      EXPECT_GE(origin_.latest + copy.begin, ready_[layer]) << "layer " << layer;
    }
  }

  void check_backward() {
    check_both_passes();
    ASSERT_EQ(executor_->device_times().layers.size(), kLayers);
    for (const LayerInterval& ran : executor_->device_times().layers) {
      const std::uint32_t layer = ran.layer.value();
      const auto down = copies(Stage::kDownload, layer);
      ASSERT_EQ(down.size(), layer == kFactorLayer ? 2u : 1u) << "layer " << layer;
      std::int64_t bytes = 0;
      for (const CopyInterval& copy : down) {
        EXPECT_GE(copy.begin, ran.end) << "layer " << layer << "'s gradient is not complete";
        EXPECT_LE(origin_.earliest + copy.end, back_[layer]) << "layer " << layer;
        bytes += copy.bytes;
      }
      EXPECT_EQ(bytes, layer == kFactorLayer ? factor_bytes_[layer] : bytes_[layer]);
    }
  }

  /// Adds the copies during which the device computed.
  void find_overlaps() {
    const DeviceTimes times = executor_->device_times();
    for (const CopyInterval& copy : times.copies) {
      for (const LayerInterval& ran : times.layers) {
        const bool overlaps = std::max(copy.begin, ran.begin) < std::min(copy.end, ran.end);
        if (overlaps) beside_.insert(name(copy.stage, copy.layer));
      }
    }
  }

  static std::string name(Stage stage, std::optional<LayerIndex> layer) {
    return layer ? absl::StrCat(stage_name(stage), " of layer ", layer->value())
                 : absl::StrCat(stage_name(stage), " of a batch");
  }
  /// Those beside which there is something to compute. (Nothing is below the first layer, nor
  /// before its parameters are there.)
  static std::vector<std::string> all_names() {
    std::vector<std::string> names = {name(Stage::kUpload, std::nullopt),
                                      name(Stage::kUploadFactors, LayerIndex(kFactorLayer))};
    for (std::uint32_t layer = 1; layer < kLayers; ++layer) {
      names.push_back(name(Stage::kDownload, LayerIndex(layer)));
      if (layer != kFactorLayer) names.push_back(name(Stage::kUpload, LayerIndex(layer)));
    }
    return names;
  }
  bool all_beside() const {
    const std::vector<std::string> names = all_names();
    return std::all_of(names.begin(), names.end(),
                       [this](const std::string& one) { return beside_.contains(one); });
  }

  SystemClock clock_;
  Origin origin_;
  bool has_clock_ = false;
  std::int64_t batch_size_ = kBatch;
  std::array<Batch, 3> batches_;
  std::vector<std::int64_t> bytes_, factor_bytes_;  ///< by layer
  std::vector<float> output_gradients_, inputs_;
  std::unique_ptr<testing::Training> training_;
  Executor* executor_ = nullptr;
  std::array<Nanoseconds, kLayers> ready_{}, back_{};  ///< when the hooks were called
  std::set<std::string> beside_;                       ///< copies, by name
};

TEST_P(GpuCopies, ComeAfterWhatTheyNeedAndBesideComputing) {
  executor_->time_passes(PassTiming::kLayersAndCopies);
  for (int i = 0; i < kMostIterations && !all_beside() && !HasFailure(); ++i) {
    const Batch& batch = batches_[static_cast<std::size_t>(i) % batches_.size()];
    const Batch& next = batches_[static_cast<std::size_t>(i + 1) % batches_.size()];
    const auto result = executor_->forward(batch, Phase::kTrain, hooks(i));
    ASSERT_TRUE(result.ok()) << result.status();
    if (!has_clock_) {
      EXPECT_TRUE(executor_->device_times().copies.empty()) << "of a CPU there are none";
      return;
    }
    check_forward(i);
    find_overlaps();
    ASSERT_TRUE(executor_->stage(next).ok());
    const absl::Status backward = executor_->backward(hooks(i));
    ASSERT_TRUE(backward.ok()) << backward;
    check_backward();
    find_overlaps();
  }
  EXPECT_THAT(beside_, IsSupersetOf(all_names()));
}

INSTANTIATE_TEST_SUITE_P(Precisions, GpuCopies, ::testing::ValuesIn(kPrecisions),
                         testing::precision_name);

}  // namespace
}  // namespace poseidon::copies_test
