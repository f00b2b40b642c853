#include "tests/gpu/training.h"

#include <cmath>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "gtest/gtest.h"
#include "models/net/initialise.h"
#include "tests/support/layer_harness.h"
#include "worker/engine/executor/network_executor.h"

namespace poseidon::testing {
namespace {

constexpr std::uint64_t kParameterSeed = 3;

}  // namespace

std::unique_ptr<Training> Training::create(const NetSpec& net, std::int64_t batch_size,
                                           std::unique_ptr<Device> device,
                                           const OptimizerSpec& optimizer) {
  if (device == nullptr) return nullptr;
  auto executor = NetworkExecutor::create(net, {.batch_size = batch_size}, std::move(device));
  if (!executor.ok()) {
    ADD_FAILURE() << net.name << ": " << executor.status();
    return nullptr;
  }
  initialise_parameters(net, kParameterSeed,
                        [&](LayerIndex layer) { return (*executor)->parameters(layer); });
  return std::unique_ptr<Training>(new Training(*std::move(executor), optimizer));
}

Training::Training(std::unique_ptr<Executor> executor, const OptimizerSpec& optimizer)
    : optimizer_(optimizer), executor_(std::move(executor)) {
  POSEIDON_CHECK(optimizer.type == OptimizerType::kSgd, "one state value per parameter");
  for (std::uint32_t l = 0; l < executor_->net().parameter_layers().size(); ++l) {
    momentum_.emplace_back(optimizer.momentum > 0 ? executor_->parameters(LayerIndex(l)).size()
                                                  : 0);
  }
}

double Training::iterate(const Batch& batch, const Batch* next) {
  const auto result = executor_->forward(batch, Phase::kTrain, {});
  absl::Status status = result.status();
  if (status.ok() && next != nullptr) status = executor_->stage(*next);
  if (status.ok()) status = executor_->backward({});
  EXPECT_TRUE(status.ok()) << (result.ok() ? "backward: " : "forward: ") << status;
  if (!status.ok()) return std::numeric_limits<double>::quiet_NaN();
  const OptimizerStep step = make_optimizer_step(optimizer_, iteration_++, 1.0f);
  for (std::uint32_t l = 0; l < momentum_.size(); ++l) {
    const std::span<float> parameters = executor_->parameters(LayerIndex(l));
    apply_optimizer(step, std::span<const float>(executor_->gradients(LayerIndex(l))), parameters,
                    parameters, momentum_[l], {});
  }
  return result->mean_loss();
}

std::vector<float> Training::parameters() {
  std::vector<float> all;
  for (std::uint32_t l = 0; l < momentum_.size(); ++l) {
    const auto values = executor_->parameters(LayerIndex(l));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<std::vector<float>> Training::gradients() {
  std::vector<std::vector<float>> all;
  for (std::uint32_t l = 0; l < momentum_.size(); ++l) {
    const auto values = executor_->gradients(LayerIndex(l));
    all.emplace_back(values.begin(), values.end());
  }
  return all;
}

Batch random_batch(const NetSpec& net, std::int64_t samples, std::uint64_t seed) {
  Batch batch;
  batch.samples = batch.valid_samples = samples;
  batch.first_sample = seed * 1000;
  batch.images = values(mix_seed(seed, 0), samples * element_count(net.input_shape));
  SplitMix64 random(seed);
  for (std::int64_t i = 0; i < samples; ++i) {
    batch.labels.push_back(
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(net.classes))));
  }
  return batch;
}

double relative_distance(const std::vector<float>& got, const std::vector<float>& wanted) {
  if (got.size() != wanted.size()) return std::numeric_limits<double>::infinity();
  double apart = 0.0, size = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - wanted[i];
    apart += difference * difference;
    size += static_cast<double>(wanted[i]) * wanted[i];
  }
  const double distance = std::sqrt(apart) / std::max(std::sqrt(size), 1e-30);
  return std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
}

}  // namespace poseidon::testing
