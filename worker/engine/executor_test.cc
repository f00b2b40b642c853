// The layer walk: what is run when, for every device alike. Networks are small and odd on purpose.

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
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/forwarding_device.h"
#include "worker/engine/late_device.h"
#include "worker/engine/layer_harness.h"
#include "worker/engine/network_executor.h"
#include "worker/engine/reference/reference_device.h"

namespace poseidon {
namespace {

using nlohmann::json;
using testing::all_near;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// conv "a" feeds three layers; "left" and "right" meet again; a dropout before the end.
NetSpec branched(double dropout_ratio = 0.0, const char* left_type = "relu") {
  const json net = {
      {"name", "branched"},
      {"input", {2, 7, 5}},
      {"layers",
       {{{"name", "a"}, {"type", "convolution"}, {"outputs", 3}, {"kernel", 3}, {"pad", 1}},
        {{"name", "left"}, {"type", left_type}, {"inputs", {"a"}}},
        {{"name", "b"}, {"type", "convolution"}, {"outputs", 3}, {"kernel", 1}, {"inputs", {"a"}}},
        {{"name", "sum"}, {"type", "add"}, {"inputs", {"left", "b", "a"}}},
        {{"name", "pool"}, {"type", "pooling"}, {"pool", "average"}, {"kernel", 3}, {"stride", 2}},
        {{"name", "drop"}, {"type", "dropout"}, {"ratio", dropout_ratio}},
        {{"name", "fc"}, {"type", "fully_connected"}, {"outputs", 4}},
        {{"name", "loss"}, {"type", "softmax_cross_entropy"}},
        {{"name", "top1"}, {"type", "accuracy"}, {"inputs", {"fc"}}}}}};
  const auto spec = parse_network(net);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return *spec;
}

Batch make_batch(const NetSpec& net, std::int64_t samples, std::uint64_t seed) {
  Batch batch;
  batch.samples = batch.valid_samples = samples;
  batch.images = testing::values(mix_seed(seed, 0), samples * element_count(net.input_shape));
  SplitMix64 random(seed);
  for (std::int64_t i = 0; i < samples; ++i) {
    batch.labels.push_back(
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(net.classes))));
  }
  return batch;
}

void initialise(Executor& executor, std::uint64_t seed) {
  initialise_parameters(executor.net(), seed,
                        [&](LayerIndex layer) { return executor.parameters(layer); });
}

std::vector<std::vector<float>> all_gradients(Executor& executor) {
  std::vector<std::vector<float>> result;
  for (std::uint32_t i = 0; i < executor.net().parameter_layers().size(); ++i) {
    const auto gradient = executor.gradients(LayerIndex(i));
    result.emplace_back(gradient.begin(), gradient.end());
  }
  return result;
}

ForwardResult run(Executor& executor, const Batch& batch, const ExecutionHooks& hooks = {}) {
  const auto result = executor.forward(batch, Phase::kTrain, hooks);
  EXPECT_TRUE(result.ok()) << result.status().message();
  const absl::Status status = executor.backward(hooks);
  EXPECT_TRUE(status.ok()) << status.message();
  return result.ok() ? *result : ForwardResult{};
}

struct Counts {
  int allocations = 0;
  std::vector<std::string> without_input_gradient;
};

// Sees what the executor asks of a device.
class RecordingDevice final : public ForwardingDevice {
 public:
  explicit RecordingDevice(Counts* counts)
      : ForwardingDevice(make_reference_device()), counts_(counts) {}
  absl::StatusOr<DeviceMemory> allocate(std::int64_t bytes) override {
    ++counts_->allocations;
    return inner().allocate(bytes);
  }
  absl::StatusOr<DeviceMemory> allocate_host(std::int64_t bytes) override {
    ++counts_->allocations;
    return inner().allocate_host(bytes);
  }
  absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(
      const LayerSpec& layer, const OperatorOptions& options) override {
    if (!options.wants_input_gradient) counts_->without_input_gradient.push_back(layer.name);
    return inner().make_operator(layer, options);
  }

 private:
  Counts* counts_;
};

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
  hooks.before_forward = [&](LayerIndex layer) {
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
  hooks.before_forward = [&](LayerIndex layer) {
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

TEST_P(ExecutorTest, AnErrorInBeforeForwardEndsThePass) {
  const NetSpec net = branched();
  const auto executor = make(net, 2);
  ExecutionHooks hooks;
  hooks.before_forward = [](LayerIndex layer) {
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
  // Rubbish in the head must not matter, nor may anybody wait for its parameters.
  for (float& value : executor->parameters(LayerIndex(2))) {
    value = std::numeric_limits<float>::quiet_NaN();
  }
  std::vector<std::uint32_t> asked;
  ExecutionHooks hooks;
  hooks.before_forward = [&](LayerIndex layer) {
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

TEST(NetworkExecutor, AllocatesAtCreationOnly) {
  Counts counts;
  const NetSpec net = branched(0.5);
  auto executor =
      NetworkExecutor::create(net, {2, 1, 1}, std::make_unique<RecordingDevice>(&counts));
  ASSERT_TRUE(executor.ok());
  const int at_creation = counts.allocations;
  EXPECT_GT(at_creation, 0);
  run(**executor, make_batch(net, 2, 1));
  EXPECT_EQ(counts.allocations, at_creation);
}

TEST(NetworkExecutor, NobodyComputesTheGradientOfTheData) {
  Counts counts;
  auto executor =
      NetworkExecutor::create(branched(), {2, 1, 1}, std::make_unique<RecordingDevice>(&counts));
  ASSERT_TRUE(executor.ok());
  EXPECT_THAT(counts.without_input_gradient, ElementsAre("a", "top1"))
      << "nor that of a count of hits";
}

TEST(NetworkExecutor, DevicesAgreeOnABranchedNetwork) {
  const NetSpec net = branched(0.5);
  auto cpu = make_cpu_executor(net, {3, 1, 2});
  auto reference = NetworkExecutor::create(net, {3, 1, 1}, make_reference_device());
  ASSERT_TRUE(cpu.ok() && reference.ok());
  initialise(**cpu, 5);
  initialise(**reference, 5);
  const Batch batch = make_batch(net, 3, 2);
  EXPECT_NEAR(run(**cpu, batch).loss_sum, run(**reference, batch).loss_sum, 1e-5);
  const auto got = all_gradients(**cpu);
  const auto wanted = all_gradients(**reference);
  for (std::size_t i = 0; i < got.size(); ++i) {
    // Sums of at most 3 x 35 terms of order one, through five layers.
    EXPECT_TRUE(all_near(got[i], wanted[i], 5 * 105 * testing::kFloatEpsilon)) << "layer " << i;
  }
}

// Images of 16, 32 and 48 channels, which the CPU device keeps in a layout of its own; 24 channels,
// which it does not; and every kind of layer between both.
NetSpec widths() {
  const auto conv = [](const char* name, int outputs, const char* input) {
    return json{{"name", name}, {"type", "convolution"}, {"outputs", outputs}, {"kernel", 3},
                {"pad", 1},     {"inputs", {input}}};
  };
  const json net = {{"name", "widths"},
                    {"input", {3, 13, 11}},
                    {"layers",
                     {conv("a", 32, "input"),
                      {{"name", "bn"}, {"type", "batch_norm"}},
                      {{"name", "relu"}, {"type", "relu"}},
                      {{"name", "max"},
                       {"type", "pooling"},
                       {"pool", "max"},
                       {"kernel", 3},
                       {"stride", 2},
                       {"pad", 1}},
                      conv("b", 48, "max"),
                      conv("c", 24, "max"),
                      {{"name", "mixed"}, {"type", "concat"}, {"inputs", {"b", "c"}}},
                      conv("d", 32, "mixed"),
                      conv("e", 16, "max"),
                      conv("f", 16, "max"),
                      {{"name", "blocked"}, {"type", "concat"}, {"inputs", {"e", "f"}}},
                      {{"name", "sum"}, {"type", "add"}, {"inputs", {"d", "blocked", "max"}}},
                      {{"name", "lrn"}, {"type", "lrn"}, {"alpha", 0.1}},
                      conv("h", 16, "lrn"),
                      conv("i", 16, "h"),
                      {{"name", "drop_i"}, {"type", "dropout"}, {"ratio", 0.25}},
                      {{"name", "once"}, {"type", "add"}, {"inputs", {"h", "drop_i"}}},
                      {{"name", "twice"}, {"type", "add"}, {"inputs", {"once", "h"}}},
                      {{"name", "drop"}, {"type", "dropout"}, {"ratio", 0.25}},
                      {{"name", "g"},
                       {"type", "convolution"},
                       {"outputs", 32},
                       {"kernel", 3},
                       {"pad", 1},
                       {"groups", 2}},
                      {{"name", "average"},
                       {"type", "pooling"},
                       {"pool", "average"},
                       {"kernel", 3},
                       {"stride", 2},
                       {"pad", 1},
                       {"ceil_mode", true},
                       {"count_padding", true}},
                      {{"name", "all"}, {"type", "pooling"}, {"pool", "average"}, {"global", true}},
                      {{"name", "fc"}, {"type", "fully_connected"}, {"outputs", 5}},
                      {{"name", "image_fc"},
                       {"type", "fully_connected"},
                       {"outputs", 5},
                       {"inputs", {"average"}}},
                      {{"name", "both"}, {"type", "add"}, {"inputs", {"fc", "image_fc"}}},
                      {{"name", "loss"}, {"type", "softmax_cross_entropy"}}}}};
  const auto spec = parse_network(net);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return *spec;
}

TEST(NetworkExecutor, DevicesAgreeWhateverTheirLayouts) {
  const NetSpec net = widths();
  auto reference = NetworkExecutor::create(net, {3, 1, 1}, make_reference_device());
  ASSERT_TRUE(reference.ok()) << reference.status().message();
  initialise(**reference, 5);
  const Batch batch = make_batch(net, 3, 2);
  const ForwardResult wanted_result = run(**reference, batch);
  const auto wanted = all_gradients(**reference);
  for (const int threads : {1, 2}) {
    auto cpu = make_cpu_executor(net, {3, 1, threads});
    ASSERT_TRUE(cpu.ok()) << cpu.status().message();
    initialise(**cpu, 5);
    EXPECT_NEAR(run(**cpu, batch).loss_sum, wanted_result.loss_sum, 1e-5);
    const auto got = all_gradients(**cpu);
    for (std::size_t i = 0; i < got.size(); ++i) {
      double largest = 0.0;
      for (const float g : wanted[i]) largest = std::max(largest, std::abs(static_cast<double>(g)));
      // Sums of at most 3 x 13 x 11 or 72 x 9 terms through ten layers; rounding errors are random,
      // so they grow with the square root.
      const double tolerance = 10 * std::sqrt(648.0) * testing::kFloatEpsilon * largest;
      EXPECT_TRUE(all_near(got[i], wanted[i], std::max(tolerance, 1e-6)))
          << "layer " << i << ", " << threads << " threads";
    }
    const auto tested = (*cpu)->forward(batch, Phase::kTest, {});
    const auto wanted_test = (*reference)->forward(batch, Phase::kTest, {});
    ASSERT_TRUE(tested.ok() && wanted_test.ok());
    EXPECT_NEAR(tested->loss_sum, wanted_test->loss_sum, 1e-5);
  }
}

// What other workers get of a layer that reads an image is in the plain order.
TEST(NetworkExecutor, FactorsArePlain) {
  const NetSpec net = widths();
  auto cpu = make_cpu_executor(net, {3, 1, 1});
  auto reference = NetworkExecutor::create(net, {3, 1, 1}, make_reference_device());
  ASSERT_TRUE(cpu.ok() && reference.ok());
  const auto factors = [&](Executor& executor) {
    initialise(executor, 5);
    const LayerIndex layer(static_cast<std::uint32_t>(net.parameter_layers().size() - 1));
    EXPECT_TRUE(executor.keep_factors(layer, 0).ok());
    run(executor, make_batch(net, 3, 2));
    const LayerSpec& spec = net.layers[net.parameter_layers().back()];
    std::vector<float> gradient(3 * 5),
        input(static_cast<std::size_t>(3 * element_count(spec.input_shape)));
    EXPECT_TRUE(executor.copy_factors(layer, gradient, input).ok());
    return input;
  };
  EXPECT_TRUE(all_near(factors(**cpu), factors(**reference), 1e-4));
}

TEST(NetworkExecutor, RangesAreAlignedAndDisjoint) {
  auto executor = make_cpu_executor(branched(), {2, 1, 1});
  ASSERT_TRUE(executor.ok());
  for (std::uint32_t i = 0; i < 3; ++i) {
    const LayerIndex layer(i);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*executor)->parameters(layer).data()) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*executor)->gradients(layer).data()) % 64, 0u);
    EXPECT_NE((*executor)->parameters(layer).data(), (*executor)->gradients(layer).data());
  }
  EXPECT_EQ((*executor)->parameters(LayerIndex(0)).size(), 3u * 2 * 9 + 3);
}

TEST(MakeCpuExecutor, RefusesWhatCannotRun) {
  const NetSpec net = branched();
  const auto message = [&](const NetSpec& of, const ExecutorOptions& options) {
    return std::string(make_cpu_executor(of, options).status().message());
  };
  EXPECT_THAT(message(net, {0, 1, 1}), HasSubstr("batch size must be from 1 to 1048576, got 0"));
  EXPECT_THAT(message(net, {-5, 1, 1}), HasSubstr("got -5"));
  EXPECT_THAT(message(net, {1 << 21, 1, 1}), HasSubstr("got 2097152"));
  EXPECT_THAT(message(net, {1, 1, -1}), HasSubstr("threads must be from 0 (all cores)"));
  const auto huge = parse_network(json::parse(R"({"name": "huge", "input": [1000000], "layers": [
      {"name": "f", "type": "fully_connected", "outputs": 2000},
      {"name": "g", "type": "fully_connected", "outputs": 1000000},
      {"name": "l", "type": "softmax_cross_entropy"}]})"));
  ASSERT_TRUE(huge.ok()) << huge.status().message();
  const auto result = make_cpu_executor(*huge, {1 << 20, 1, 1});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("network 'huge' with batch size 1048576 needs at least"));
}

}  // namespace
}  // namespace poseidon
