// The layer walk: the order of calls, the same for every device. Networks are small and odd on
// purpose.

#include "worker/engine/executor.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/late_device.h"
#include "tests/support/layer_harness.h"
#include "tests/twins/reference_device/reference_device.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/executor/executor_test_support.h"
#include "worker/engine/executor/network_executor.h"

namespace poseidon::executor_test {
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

std::unique_ptr<Device> make_device(const std::string& name) {
  static testing::LateControl control;  // all is done as late as can be
  if (name == "late") return std::make_unique<testing::LateDevice>(&control);
  return make_reference_device();
}

class ExecutorTest : public ::testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<Executor> make(const NetSpec& net, std::int64_t batch_size,
                                        std::uint64_t seed = 1) {
    const ExecutorOptions options{batch_size, seed, 1};
    auto executor = GetParam() == "cpu"
                        ? make_cpu_executor(net, options)
                        : NetworkExecutor::create(net, options, make_device(GetParam()));
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    initialise(**executor, 5);
    return *std::move(executor);
  }
};

TEST_P(ExecutorTest, GradientsMatchFiniteDifferences) {
  // Smooth everywhere: at a kink of ReLU a difference over a step is no derivative.
  const NetSpec net = branched(0.25, "lrn");
  const auto executor = make(net, 3);
  const Batch batch = make_batch(net, 3, 9);
  run(*executor, batch);
  const auto gradients = all_gradients(*executor);
  // A step of 2^-6: the error of the difference is about step^2 = 2.4e-4, that of float in the loss
  // about epsilon / step = 1e-5.
  constexpr float kStep = 0x1.0p-6f;
  for (std::uint32_t i = 0; i < gradients.size(); ++i) {
    const auto parameters = executor->parameters(LayerIndex(i));
    for (std::size_t j = 0; j < parameters.size(); j += 3) {
      const float kept = parameters[j];
      const auto loss_at = [&](float value) {
        parameters[j] = value;
        return executor->forward(batch, Phase::kTrain, {})->mean_loss();
      };
      const double slope = (loss_at(kept + kStep) - loss_at(kept - kStep)) / (2.0 * kStep);
      parameters[j] = kept;
      EXPECT_NEAR(gradients[i][j], slope, 1e-3) << "layer " << i << " element " << j;
    }
  }
}

TEST_P(ExecutorTest, HooksComeInOrder) {
  const NetSpec net = branched();
  const auto executor = make(net, 2);
  std::vector<std::string> calls;
  ExecutionHooks hooks;
  hooks.before_forward = [&](LayerIndex layer, const PartArrived&) {
    calls.push_back(absl::StrCat("f", layer.value()));
    return absl::OkStatus();
  };
  hooks.after_backward = [&](LayerIndex layer) {
    calls.push_back(absl::StrCat("b", layer.value()));
  };
  run(*executor, make_batch(net, 2, 1), hooks);
  EXPECT_THAT(calls, ElementsAre("f0", "f1", "f2", "b2", "b1", "b0"));
}

TEST_P(ExecutorTest, ParametersAreReadAfterBeforeForward) {
  const NetSpec net = branched();
  const auto executor = make(net, 2);
  const Batch batch = make_batch(net, 2, 1);
  const double wanted = run(*executor, batch).loss_sum;
  std::vector<std::vector<float>> kept;
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto parameters = executor->parameters(LayerIndex(i));
    kept.emplace_back(parameters.begin(), parameters.end());
    std::fill(parameters.begin(), parameters.end(), std::numeric_limits<float>::quiet_NaN());
  }
  ExecutionHooks hooks;
  hooks.before_forward = [&](LayerIndex layer, const PartArrived&) {
    std::copy(kept[layer.value()].begin(), kept[layer.value()].end(),
              executor->parameters(layer).begin());
    return absl::OkStatus();
  };
  EXPECT_EQ(run(*executor, batch, hooks).loss_sum, wanted);
}

// What after_backward promises: fresh parameters may arrive at once, and the gradient is final.
TEST_P(ExecutorTest, AfterBackwardReleasesTheLayer) {
  const NetSpec net = branched();
  const auto executor = make(net, 2);
  const Batch batch = make_batch(net, 2, 1);
  run(*executor, batch);
  const auto wanted = all_gradients(*executor);
  std::vector<std::vector<float>> at_hook(wanted.size());
  ExecutionHooks hooks;
  hooks.after_backward = [&](LayerIndex layer) {
    const auto gradient = executor->gradients(layer);
    at_hook[layer.value()].assign(gradient.begin(), gradient.end());
    const auto parameters = executor->parameters(layer);
    std::fill(parameters.begin(), parameters.end(), std::numeric_limits<float>::quiet_NaN());
  };
  run(*executor, batch, hooks);
  EXPECT_EQ(at_hook, wanted);
  EXPECT_EQ(all_gradients(*executor), wanted);
}

// What is on its way to a server that vanished is released late.
TEST_P(ExecutorTest, WhatIsSentFromMayOutliveIt) {
  const NetSpec net = branched();
  auto executor = make(net, 2);
  run(*executor, make_batch(net, 2, 1));
  const auto wanted = all_gradients(*executor);
  std::vector<std::span<const float>> sent;
  std::vector<std::shared_ptr<const void>> held;
  for (std::uint32_t i = 0; i < wanted.size(); ++i) {
    sent.push_back(executor->gradients(LayerIndex(i)));
    held.push_back(executor->memory(LayerIndex(i)));
  }
  executor.reset();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(sent[i], wanted[i])) << i;
  }
}

TEST_P(ExecutorTest, AnErrorInBeforeForwardEndsThePass) {
  const NetSpec net = branched();
  const auto executor = make(net, 2);
  ExecutionHooks hooks;
  hooks.before_forward = [](LayerIndex layer, const PartArrived&) {
    return layer.value() == 1 ? absl::UnavailableError("server 1 is silent") : absl::OkStatus();
  };
  const auto result = executor->forward(make_batch(net, 2, 1), Phase::kTrain, hooks);
  EXPECT_EQ(result.status(), absl::UnavailableError("server 1 is silent"));
  EXPECT_EQ(executor->backward({}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(ExecutorTest, BackwardNeedsATrainingForward) {
  const NetSpec net = branched();
  const auto executor = make(net, 2);
  EXPECT_EQ(executor->backward({}).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(executor->forward(make_batch(net, 2, 1), Phase::kTest, {}).ok());
  EXPECT_EQ(executor->backward({}).code(), absl::StatusCode::kFailedPrecondition);
  run(*executor, make_batch(net, 2, 1));
  EXPECT_EQ(executor->backward({}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(ExecutorTest, GradientsAreOverwrittenNotAccumulated) {
  const NetSpec net = branched();
  const auto executor = make(net, 2);
  const Batch batch = make_batch(net, 2, 1);
  run(*executor, batch);
  const auto once = all_gradients(*executor);
  run(*executor, batch);
  EXPECT_EQ(all_gradients(*executor), once);
}

TEST_P(ExecutorTest, FillingSamplesCountForNothing) {
  const NetSpec net = branched();
  const auto large = make(net, 5);
  const auto small = make(net, 3);
  Batch padded = make_batch(net, 5, 4);
  padded.valid_samples = 3;
  padded.labels[4] = -1;  // filling may be anything
  padded.images.back() = std::numeric_limits<float>::infinity();
  Batch exact = padded;
  exact.samples = 3;
  exact.labels.resize(3);
  exact.images.resize(3 * 70);
  const auto with_filling = large->forward(padded, Phase::kTest, {});
  const auto without = small->forward(exact, Phase::kTest, {});
  ASSERT_TRUE(with_filling.ok() && without.ok());
  EXPECT_EQ(with_filling->samples, 3);
  EXPECT_EQ(with_filling->correct, without->correct);
  EXPECT_NEAR(with_filling->loss_sum, without->loss_sum, 1e-5);
  EXPECT_EQ(large->first_nonfinite_layer(), "") << "filling is not searched";
}

TEST_P(ExecutorTest, CorrectIsCountedWithoutAnAccuracyLayerToo) {
  const NetSpec net = branched();
  json source = net.source;
  source["layers"].erase(source["layers"].size() - 1);
  const auto bare = parse_network(source);
  ASSERT_TRUE(bare.ok());
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const Batch batch = make_batch(net, 6, seed);
    EXPECT_EQ(run(*make(net, 6), batch).correct, run(*make(*bare, 6), batch).correct);
  }
}

TEST_P(ExecutorTest, NamesTheFirstLayerThatIsNotFinite) {
  const NetSpec net = branched();
  const auto executor = make(net, 2);
  const Batch batch = make_batch(net, 2, 1);
  const auto found_after = [&](const Batch& on) {
    EXPECT_TRUE(executor->forward(on, Phase::kTest, {}).ok());
    return executor->first_nonfinite_layer();
  };
  EXPECT_EQ(executor->first_nonfinite_layer(), "");
  EXPECT_EQ(found_after(batch), "");
  Batch bad = batch;
  bad.images[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(found_after(bad), "input (data)");
  float& weight = executor->parameters(LayerIndex(1))[2];
  const float kept = std::exchange(weight, std::numeric_limits<float>::infinity());
  EXPECT_EQ(found_after(batch), "b (parameters)");
  weight = kept;
  for (float& w : executor->parameters(LayerIndex(2))) w = std::numeric_limits<float>::max();
  EXPECT_EQ(found_after(batch), "fc (output)");
}

TEST_P(ExecutorTest, RefusesBatchesThatDoNotFit) {
  const NetSpec net = branched();
  const auto executor = make(net, 2);
  const auto message = [&](const Batch& batch) {
    const auto result = executor->forward(batch, Phase::kTest, {});
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  EXPECT_THAT(message(make_batch(net, 3, 1)),
              HasSubstr("batch of 3 samples with 210 values and 3 labels does not fit network "
                        "'branched', which was set up for 2 samples of 2x7x5 values each"));
  Batch batch = make_batch(net, 2, 1);
  batch.labels[1] = 4;
  EXPECT_THAT(message(batch), HasSubstr("label 4 of sample 1 of the batch is not a class of "
                                        "network 'branched': classes are 0 to 3"));
  batch.labels[1] = -1;
  EXPECT_THAT(message(batch), HasSubstr("label -1 of sample 1"));
  batch = make_batch(net, 2, 1);
  batch.valid_samples = 0;
  EXPECT_THAT(message(batch), HasSubstr("valid samples of a batch must be from 1 to 2, got 0"));
  batch.valid_samples = 2;
  batch.images.pop_back();
  EXPECT_THAT(message(batch), HasSubstr("with 139 values"));
}

// The same four samples as one worker's batch and as two workers' batches.
TEST_P(ExecutorTest, DropoutDoesNotDependOnTheNumberOfWorkers) {
  const NetSpec net = branched(0.5);
  const Batch whole = make_batch(net, 4, 3);
  const auto one = make(net, 4);
  const double loss = run(*one, whole).loss_sum;
  const auto wanted = all_gradients(*one);
  double halves_loss = 0.0;
  std::vector<std::vector<float>> mean;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    Batch half;
    half.samples = half.valid_samples = 2;
    half.first_sample = 2 * rank;
    const auto images = whole.images.begin() + static_cast<std::ptrdiff_t>(rank * 140);
    half.images.assign(images, images + 140);
    half.labels = {whole.labels[2 * rank], whole.labels[2 * rank + 1]};
    const auto worker = make(net, 2);
    halves_loss += run(*worker, half).loss_sum;
    auto gradients = all_gradients(*worker);
    if (rank == 0) mean = gradients;
    for (std::size_t i = 0; rank == 1 && i < mean.size(); ++i) {
      for (std::size_t j = 0; j < mean[i].size(); ++j) {
        mean[i][j] = (mean[i][j] + gradients[i][j]) / 2.0f;
      }
    }
  }
  EXPECT_NEAR(halves_loss, loss, 1e-5);
  for (std::size_t i = 0; i < mean.size(); ++i) {
    EXPECT_TRUE(all_near(mean[i], wanted[i], 1e-5)) << "layer " << i;
  }
}

TEST_P(ExecutorTest, DropoutFollowsSampleNumberAndSeed) {
  const NetSpec net = branched(0.5);
  Batch batch = make_batch(net, 4, 3);
  const auto executor = make(net, 4);
  const double first = run(*executor, batch).loss_sum;
  EXPECT_EQ(run(*executor, batch).loss_sum, first);
  EXPECT_NE(run(*make(net, 4, 2), batch).loss_sum, first) << "another seed";
  const auto tested = executor->forward(batch, Phase::kTest, {});
  EXPECT_EQ(tested->loss_sum, make(branched(0.0), 4)->forward(batch, Phase::kTrain, {})->loss_sum)
      << "no dropout in tests";
  batch.first_sample = 4;
  EXPECT_NE(run(*executor, batch).loss_sum, first) << "another iteration";
}

// Two heads on one trunk; the auxiliary one has parameters of its own.
NetSpec two_heads(double weight) {
  const auto spec = parse_network(
      json{{"name", "two_heads"},
           {"input", {2, 6, 5}},
           {"layers",
            {{{"name", "trunk"}, {"type", "convolution"}, {"outputs", 3}, {"kernel", 3}},
             {{"name", "norm"}, {"type", "batch_norm"}},
             {{"name", "side"}, {"type", "fully_connected"}, {"outputs", 4}},
             {{"name", "side_loss"},
              {"type", "softmax_cross_entropy"},
              {"auxiliary", true},
              {"loss_weight", weight}},
             {{"name", "main"}, {"type", "fully_connected"}, {"outputs", 4}, {"inputs", {"norm"}}},
             {{"name", "loss"}, {"type", "softmax_cross_entropy"}}}}});
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return *spec;
}

TEST_P(ExecutorTest, TheTrainingLossIsTheWeightedSumOfAll) {
  const Batch batch = make_batch(two_heads(0.0), 3, 8);
  const double main_alone = run(*make(two_heads(0.0), 3), batch).loss_sum;
  const double with_half = run(*make(two_heads(0.5), 3), batch).loss_sum;
  const double with_all = run(*make(two_heads(1.0), 3), batch).loss_sum;
  EXPECT_GT(with_half, main_alone + 0.1);
  EXPECT_NEAR(with_all - main_alone, 2.0 * (with_half - main_alone), 1e-6);
}

TEST_P(ExecutorTest, AuxiliaryHeadsRestInTests) {
  const auto executor = make(two_heads(0.5), 3);
  const Batch batch = make_batch(executor->net(), 3, 8);
  run(*executor, batch);
  // Rubbish in the head must not matter, and no pass may wait for its parameters.
  for (float& value : executor->parameters(LayerIndex(2))) {
    value = std::numeric_limits<float>::quiet_NaN();
  }
  std::vector<std::uint32_t> asked;
  ExecutionHooks hooks;
  hooks.before_forward = [&](LayerIndex layer, const PartArrived&) {
    asked.push_back(layer.value());
    return absl::OkStatus();
  };
  const auto tested = executor->forward(batch, Phase::kTest, hooks);
  ASSERT_TRUE(tested.ok());
  EXPECT_THAT(asked, ElementsAre(0, 1, 3));
  EXPECT_TRUE(std::isfinite(tested->loss_sum));
  EXPECT_EQ(executor->first_nonfinite_layer(), "");
  const auto plain = make(two_heads(0.0), 3);
  run(*plain, batch);
  EXPECT_EQ(plain->forward(batch, Phase::kTest, {})->loss_sum, tested->loss_sum);
}

TEST_P(ExecutorTest, RunningStatisticsAreReadAndWritten) {
  const auto executor = make(two_heads(0.5), 3);
  const NetSpec& net = executor->net();
  ASSERT_EQ(net.statistics_count(), 6);
  const auto places = statistic_places(net);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].name, "norm.running_mean");
  EXPECT_EQ(places[1].name, "norm.running_var");
  EXPECT_EQ(places[1].offset, 3);
  const auto statistics = [&] {
    std::vector<float> values(6);
    EXPECT_TRUE(executor->read_statistics(values).ok());
    return values;
  };
  EXPECT_THAT(statistics(), ElementsAre(0, 0, 0, 1, 1, 1));
  const Batch batch = make_batch(net, 3, 8);
  const double before = executor->forward(batch, Phase::kTest, {})->loss_sum;
  run(*executor, batch);
  const std::vector<float> moved = statistics();
  EXPECT_NE(moved, (std::vector<float>{0, 0, 0, 1, 1, 1}));
  EXPECT_NE(executor->forward(batch, Phase::kTest, {})->loss_sum, before);
  EXPECT_EQ(statistics(), moved) << "tests must not move them";
  ASSERT_TRUE(executor->forward(batch, Phase::kTrain, {}).ok());
  const std::vector<float> again = statistics();
  EXPECT_EQ(executor->first_nonfinite_layer(), "");
  EXPECT_EQ(statistics(), again) << "nor may the search for NaN";
  ASSERT_TRUE(executor->write_statistics(std::vector<float>{0, 0, 0, 1, 1, 1}).ok());
  EXPECT_EQ(executor->forward(batch, Phase::kTest, {})->loss_sum, before);
}

INSTANTIATE_TEST_SUITE_P(Devices, ExecutorTest, ::testing::Values("cpu", "reference", "late"),
                         [](const auto& device) { return device.param; });

}  // namespace
}  // namespace poseidon::executor_test
