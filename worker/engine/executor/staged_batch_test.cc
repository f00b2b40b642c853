// Staging of the next batch on a device with its own memory: the results are the same for any order
// of batches, and the pass does not wait for staged images.

#include "worker/engine/executor/staged_batch.h"
#include "models/net/initialise.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/late_device.h"
#include "tests/support/layer_harness.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/executor/network_executor.h"

namespace poseidon::staged_batch_test {
namespace {

using testing::LateControl;
using testing::LateDevice;

Batch batch_of(std::uint64_t seed, std::int64_t samples, std::int64_t values_each) {
  Batch batch;
  batch.samples = batch.valid_samples = samples;
  batch.images = testing::values(seed, samples * values_each);
  for (std::int64_t i = 0; i < samples; ++i) batch.labels.push_back(static_cast<int>(i % 3));
  batch.first_sample = seed * static_cast<std::uint64_t>(samples);
  return batch;
}

TEST(StagedBatch, GoesUpInPiecesAndIsTakenWhole) {
  const std::int64_t elements = 2'500'000;  // not quite three pieces
  const auto device = make_reference_device();
  PassTimes times;
  auto staged = StagedBatch::create(device.get(), &times, elements);
  ASSERT_TRUE(staged.ok()) << staged.status();
  StagedBatch& ours = **staged;
  EXPECT_EQ(ours.pieces(), 3u);
  Batch first = batch_of(1, 1, elements), second = batch_of(2, 1, elements);
  EXPECT_FALSE(ours.is_of(first));
  EXPECT_TRUE(ours.complete().ok()) << "of none";
  ours.name(first);
  ours.begin();
  ASSERT_TRUE(ours.advance().ok());
  ours.name(second);  // and the first is forgotten, however far it was
  EXPECT_FALSE(ours.is_of(first));
  EXPECT_TRUE(ours.is_of(second));
  first.images.assign(first.images.size(), 0.0f);  // it is no longer read
  const auto taken_is = [&](const Batch& batch) {
    DeviceMemory buffer = *device->allocate(elements * 4);
    const void* const before = buffer.get();
    const absl::Status taken = ours.take(buffer);
    ASSERT_TRUE(taken.ok()) << taken;
    EXPECT_NE(buffer.get(), before) << "in exchange";
    const auto* const values = static_cast<const float*>(buffer.get());
    EXPECT_TRUE(std::equal(batch.images.begin(), batch.images.end(), values));
    EXPECT_FALSE(ours.is_of(batch)) << "once";
  };
  ours.begin();
  ASSERT_TRUE(ours.advance().ok());
  ASSERT_TRUE(ours.complete().ok());
  taken_is(second);
  first = batch_of(1, 1, elements);
  ours.name(first);  // there was no time to copy
  taken_is(first);
  ours.name(first);
  first.first_sample += 7;  // the same memory with the batch after
  EXPECT_FALSE(ours.is_of(first));
}

TEST(StagedBatch, WhoRestsReadsNoMore) {
  const std::int64_t elements = 5'000'000;
  const auto device = make_reference_device();
  PassTimes times;
  auto staged = StagedBatch::create(device.get(), &times, elements);
  ASSERT_TRUE(staged.ok()) << staged.status();
  for (int i = 0; i < 20; ++i) {  // however far it is
    auto batch = std::make_unique<Batch>(batch_of(1, 1, elements));
    (*staged)->name(*batch);
    (*staged)->begin();
    std::this_thread::sleep_for(std::chrono::microseconds(100 * i));
    (*staged)->rest();
    EXPECT_FALSE((*staged)->is_of(*batch));
    batch.reset();  // which ASan watches
    EXPECT_TRUE((*staged)->advance().ok());
    EXPECT_TRUE((*staged)->complete().ok());
  }
}

/// Refuses one upload.
class RefusingDevice final : public ForwardingDevice {
 public:
  RefusingDevice() : ForwardingDevice(make_reference_device()) {}
  absl::Status start_upload(void* device, const void* host, std::int64_t bytes,
                            const CopyMarks& marks) override {
    if (!std::exchange(has_refused_, true)) return absl::UnavailableError("once");
    return inner().start_upload(device, host, bytes, marks);
  }

 private:
  bool has_refused_ = false;
};

TEST(StagedBatch, WhatDidNotGoUpGoesUpAgain) {
  const std::int64_t elements = 1'500'000;
  RefusingDevice device;
  PassTimes times;
  auto staged = StagedBatch::create(&device, &times, elements);
  ASSERT_TRUE(staged.ok()) << staged.status();
  const Batch batch = batch_of(1, 1, elements);
  (*staged)->name(batch);
  DeviceMemory buffer = *device.allocate(elements * 4);
  const void* const before = buffer.get();
  EXPECT_TRUE(absl::IsUnavailable((*staged)->take(buffer)));
  EXPECT_EQ(buffer.get(), before);
  ASSERT_TRUE((*staged)->take(buffer).ok());
  const auto* const values = static_cast<const float*>(buffer.get());
  EXPECT_TRUE(std::equal(batch.images.begin(), batch.images.end(), values));
}

NetSpec small_network() {
  const auto net = parse_network(nlohmann::json::parse(R"({
    "name": "small", "input": [2, 5, 5], "layers": [
      {"name": "conv", "type": "convolution", "outputs": 3, "kernel": 3},
      {"name": "pool", "type": "pooling", "pool": "max", "kernel": 5, "inputs": ["input"]},
      {"name": "fc1", "type": "fully_connected", "outputs": 6, "inputs": ["conv"]},
      {"name": "fc2", "type": "fully_connected", "outputs": 6, "inputs": ["pool"]},
      {"name": "sum", "type": "add", "inputs": ["fc1", "fc2"]},
      {"name": "loss", "type": "softmax_cross_entropy"}]})"));
  EXPECT_TRUE(net.ok()) << net.status();
  return *net;
}

/// Late, and counts copies from memory that is not the device's, for which a GPU lets its caller
/// wait.
class CountingLateDevice final : public ForwardingDevice {
 public:
  CountingLateDevice(LateControl* control, int* waits)
      : ForwardingDevice(std::make_unique<LateDevice>(control)), waits_(waits) {}
  absl::StatusOr<DeviceMemory> allocate_host(std::int64_t bytes) override {
    absl::StatusOr<DeviceMemory> memory = inner().allocate_host(bytes);
    if (memory.ok()) begins_.insert(memory->get());
    return memory;
  }
  absl::Status start_upload(void* device, const void* host, std::int64_t bytes,
                            const CopyMarks& marks) override {
    if (!begins_.contains(host)) ++*waits_;
    return inner().start_upload(device, host, bytes, marks);
  }

 private:
  std::set<const void*> begins_;
  int* const waits_;
};

class StagedWalk : public ::testing::TestWithParam<std::size_t> {
 protected:
  static std::unique_ptr<Executor> make(std::unique_ptr<Device> device) {
    auto executor = NetworkExecutor::create(small_network(), {.batch_size = 4}, std::move(device));
    EXPECT_TRUE(executor.ok()) << executor.status();
    initialise_parameters((*executor)->net(), 5,
                          [&](LayerIndex layer) { return (*executor)->parameters(layer); });
    return *std::move(executor);
  }
  /// Loss, then all gradients.
  static std::vector<double> train(Executor& executor, const Batch& batch, const Batch* next) {
    std::vector<double> found;
    const auto result = executor.forward(batch, Phase::kTrain, {});
    EXPECT_TRUE(result.ok()) << result.status();
    const absl::Status staged = next == nullptr ? absl::OkStatus() : executor.stage(*next);
    EXPECT_TRUE(staged.ok()) << staged;
    EXPECT_TRUE(executor.backward({}).ok());
    if (result.ok()) found.push_back(result->loss_sum);
    for (std::uint32_t l = 0; l < 3; ++l) {
      const auto gradients = executor.gradients(LayerIndex(l));
      found.insert(found.end(), gradients.begin(), gradients.end());
    }
    return found;
  }
  static double test(Executor& executor, const Batch& batch) {
    const auto result = executor.forward(batch, Phase::kTest, {});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->loss_sum : 0.0;
  }

  LateControl control_{.pieces_per_question = GetParam()};
  int waits_ = 0;
  const std::unique_ptr<Executor> ours_ =
      make(std::make_unique<CountingLateDevice>(&control_, &waits_));
  const std::unique_ptr<Executor> plain_ = make(make_reference_device());
};

TEST_P(StagedWalk, NobodyWaitsForAStagedBatch) {
  const std::vector<Batch> batches = {batch_of(1, 4, 50), batch_of(2, 4, 50), batch_of(3, 4, 50),
                                      batch_of(4, 4, 50)};
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const Batch* const next = i + 1 < batches.size() ? &batches[i + 1] : nullptr;
    EXPECT_EQ(train(*ours_, batches[i], next), train(*plain_, batches[i], nullptr)) << i;
  }
  EXPECT_EQ(waits_, 1) << "for the first alone";
}

TEST_P(StagedWalk, OthersMayComeFirstOrInstead) {
  const Batch first = batch_of(1, 4, 50), second = batch_of(2, 4, 50), third = batch_of(3, 4, 50);
  train(*ours_, first, &second);
  train(*plain_, first, nullptr);
  EXPECT_EQ(test(*ours_, third), test(*plain_, third)) << "a test pass between";
  EXPECT_EQ(ours_->first_nonfinite_layer(), "") << "which asks for the input again";
  EXPECT_EQ(train(*ours_, second, &third), train(*plain_, second, nullptr));
  EXPECT_EQ(train(*ours_, first, nullptr), train(*plain_, first, nullptr)) << "not the staged one";
  EXPECT_EQ(train(*ours_, third, &third), train(*plain_, third, nullptr)) << "late, but staged";
  EXPECT_EQ(train(*ours_, third, nullptr), train(*plain_, third, nullptr));
}

TEST_P(StagedWalk, ParametersStayWhereNothingIsWrittenToThem) {
  const Batch batch = batch_of(1, 4, 50);
  const auto loss = [&](Executor& executor, bool same) {
    const auto result = executor.forward(batch, Phase::kTrain, {.same_parameters = same});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->loss_sum : 0.0;
  };
  const double before = loss(*ours_, true);
  EXPECT_EQ(before, loss(*plain_, true)) << "they go up the first time, whatever is said";
  for (const auto& executor : {ours_.get(), plain_.get()}) {
    for (std::uint32_t l = 0; l < 3; ++l) {
      for (float& value : executor->parameters(LayerIndex(l))) value *= 0.5f;
    }
  }
  EXPECT_EQ(loss(*ours_, true), before) << "what is written in spite of it is not seen";
  const double after = loss(*plain_, false);
  EXPECT_NE(after, before);
  EXPECT_EQ(loss(*ours_, false), after);
  EXPECT_EQ(loss(*ours_, true), after);
}

TEST_P(StagedWalk, WhatAnAbortedForwardDidNotBringIsBrought) {
  const Batch batch = batch_of(1, 4, 50);
  train(*ours_, batch, nullptr);
  train(*plain_, batch, nullptr);
  for (const auto& executor : {ours_.get(), plain_.get()}) {
    for (float& value : executor->parameters(LayerIndex(2))) value *= 0.5f;
  }
  const auto abort_at = [](LayerIndex layer, const PartArrived&) {
    return layer == LayerIndex(1) ? absl::CancelledError("enough") : absl::OkStatus();
  };
  EXPECT_FALSE(ours_->forward(batch, Phase::kTrain, {.before_forward = abort_at}).ok());
  const auto got = ours_->forward(batch, Phase::kTrain, {.same_parameters = true});
  const auto wanted = plain_->forward(batch, Phase::kTrain, {});
  ASSERT_TRUE(got.ok() && wanted.ok());
  EXPECT_EQ(got->loss_sum, wanted->loss_sum);
}

TEST_P(StagedWalk, ABatchOfAnotherSizeIsRefused) {
  const Batch first = batch_of(1, 4, 50), small = batch_of(2, 3, 50);
  ASSERT_TRUE(ours_->forward(first, Phase::kTrain, {}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ours_->stage(small)));
  EXPECT_TRUE(ours_->backward({}).ok());
}

INSTANTIATE_TEST_SUITE_P(PiecesDoneAtEachQuestion, StagedWalk, ::testing::Values(0u, 1u, 3u, 100u),
                         ::testing::PrintToStringParamName());

TEST(StagedBatch, ADeviceInHostMemoryHasNoUseForIt) {
  const auto executor =
      NetworkExecutor::create(small_network(), {.batch_size = 4}, make_cpu_device(1));
  ASSERT_TRUE(executor.ok());
  const Batch first = batch_of(1, 4, 50);
  ASSERT_TRUE((*executor)->forward(first, Phase::kTrain, {}).ok());
  EXPECT_TRUE((*executor)->stage(first).ok());
  EXPECT_TRUE((*executor)->backward({}).ok());
}

}  // namespace
}  // namespace poseidon::staged_batch_test
