#include "worker/measure_compute.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/median.h"
#include "common/base/random.h"
#include "common/memory/aligned_buffer.h"
#include "common/plan/plan.h"
#include "models/net/initialise.h"
#include "worker/executor_factors.h"
#include "worker/layer_clock.h"

namespace poseidon {
namespace {

/// One pass per this many of the job's iterations, within these bounds.
constexpr Iteration kPassShare = 50;
constexpr Iteration kMinPasses = 3;
constexpr Iteration kMaxPasses = 20;
/// Rebuild products: how many, and how long one should take at most. As long as a pass does, so
/// that a small job is not held up.
constexpr int kProducts = 3;
constexpr double kLeastProductS = 1e-3;
constexpr double kMostProductS = 0.1;
constexpr std::int64_t kMaxStackElements = std::int64_t{64} << 20;  ///< of both factors

Batch made_up_batch(const NetSpec& net, std::int64_t samples) {
  SplitMix64 random(1);
  Batch batch;
  batch.samples = batch.valid_samples = samples;
  batch.images.resize(static_cast<std::size_t>(samples * element_count(net.input_shape)));
  for (float& value : batch.images) value = static_cast<float>(random.below(1 << 20)) * 0x1p-20f;
  for (std::int64_t i = 0; i < samples; ++i) {
    batch.labels.push_back(static_cast<std::int32_t>(i % net.classes));
  }
  return batch;
}

class Measurement {
 public:
  Measurement(const std::shared_ptr<Executor>& executor, const ComputeTask& task)
      : executor_(executor),
        task_(task),
        layers_(executor->net().parameter_layers()),
        passes_(layers_.size()) {}

  absl::StatusOr<ComputeSpeed> run() {
    const NetSpec& net = executor_->net();
    initialise_parameters(
        net, 1, [this](LayerIndex layer) { return executor_->parameters(layer); },
        until_stopped(run_here, kInitialisePiece, [this] { return task_.cancelled->load(); }));
    POSEIDON_RETURN_IF_ERROR(check_cancelled());
    const Batch batch = made_up_batch(net, task_.batch_size / task_.micro_batches);
    const Nanoseconds begin = task_.clock->now();
    const auto in_time = [&] { return task_.clock->now() - begin < task_.max_time; };
    // The first pass sets up what later ones find; it counts only where there is time for no other.
    POSEIDON_RETURN_IF_ERROR(pass(batch));
    if (in_time()) passes_.assign(layers_.size(), {});
    const Iteration wanted = std::clamp(task_.iterations / kPassShare, kMinPasses, kMaxPasses);
    for (Iteration i = 0; i < wanted && in_time(); ++i) POSEIDON_RETURN_IF_ERROR(pass(batch));
    const auto parts = static_cast<double>(task_.micro_batches);
    ComputeSpeed speed;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      std::vector<double> forward_s, backward_s;
      for (const LayerClock::Times& times : passes_[l]) {
        forward_s.push_back(seconds(times.forward));
        backward_s.push_back(seconds(times.backward));
      }
      speed.layers.push_back({.name = net.layers[layers_[l]].name,
                              .forward_s = parts * median(std::move(forward_s)),
                              .backward_s = parts * median(std::move(backward_s))});
    }
    POSEIDON_ASSIGN_OR_RETURN(speed.device_ops_per_s, product_speed(speed.layers));
    return speed;
  }

 private:
  absl::Status check_cancelled() const {
    return task_.cancelled->load() ? absl::CancelledError("the measurement was stopped")
                                   : absl::OkStatus();
  }

  absl::Status pass(const Batch& batch) {
    POSEIDON_RETURN_IF_ERROR(check_cancelled());
    LayerClock clock(task_.clock, layers_.size());
    const ExecutionHooks hooks{.before_forward =
                                   [&](LayerIndex layer, const PartArrived&) {
                                     clock.stop_forward();
                                     clock.run_forward(layer);
                                     return absl::OkStatus();
                                   },
                               .after_backward =
                                   [&](LayerIndex layer) {
                                     clock.stop_backward(layer);
                                     clock.run_backward();
                                   }};
    clock.begin_iteration();
    clock.begin_forward();
    const auto result = executor_->forward(batch, Phase::kTrain, hooks);
    if (!result.ok()) return result.status();
    clock.end_forward(executor_->device_times());
    POSEIDON_RETURN_IF_ERROR(check_cancelled());
    clock.begin_backward();
    POSEIDON_RETURN_IF_ERROR(executor_->backward(hooks));
    clock.end_backward(executor_->device_times());
    for (std::size_t l = 0; l < layers_.size(); ++l) passes_[l].push_back(clock.times()[l]);
    return absl::OkStatus();
  }

  /// The job's own step, on random factors.
  absl::StatusOr<double> product_speed(const std::vector<LayerTimes>& times) {
    const NetSpec& net = executor_->net();
    std::optional<std::size_t> largest;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      if (net.layers[layers_[l]].type != LayerType::kFullyConnected) continue;
      if (!largest || net.layers[layers_[l]].parameter_count() >
                          net.layers[layers_[*largest]].parameter_count()) {
        largest = l;
      }
    }
    if (!largest) return 0.0;
    const LayerSpec& layer = net.layers[layers_[*largest]];
    const std::int64_t m = layer.output_shape.front(), n = element_count(layer.input_shape);
    double pass_s = 0.0;
    for (const LayerTimes& one : times) pass_s += one.forward_s + one.backward_s;
    // As many rows as the job will stack, unless that takes too long at the forward product's
    // speed.
    const double row_s = times[*largest].forward_s / static_cast<double>(task_.batch_size);
    const double budget_s = std::clamp(pass_s, kLeastProductS, kMostProductS);
    const std::int64_t affordable =
        static_cast<std::int64_t>(std::min(budget_s / std::max(row_s, 1e-9), 1e9));
    const std::int64_t rows = std::min({std::int64_t{task_.workers} * task_.batch_size,
                                        std::max<std::int64_t>(task_.batch_size, affordable),
                                        std::max<std::int64_t>(1, kMaxStackElements / (m + n))});
    return time_products(LayerIndex(static_cast<std::uint32_t>(*largest)), rows, m, n);
  }

  absl::StatusOr<double> time_products(LayerIndex layer, std::int64_t rows, std::int64_t m,
                                       std::int64_t n) {
    Plan plan;
    plan.worker_addresses.resize(task_.workers);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      PlanLayer& spec = plan.layers.emplace_back();
      spec.name = executor_->net().layers[layers_[l]].name;
      spec.parameters = executor_->net().layers[layers_[l]].parameter_count();
      if (l != layer.value()) continue;
      spec.scheme = Scheme::kSfb;
      spec.shape = {m, n};
    }
    POSEIDON_ASSIGN_OR_RETURN(
        const std::unique_ptr<ExecutorFactors> factors,
        ExecutorFactors::create(executor_, plan, task_.optimizer, task_.micro_batches));
    FloatBuffer gradients = factors->allocate(rows * m), inputs = factors->allocate(rows * n);
    SplitMix64 random(2);
    for (const std::span<float> floats : {gradients.floats(), inputs.floats()}) {
      for (float& value : floats) value = static_cast<float>(random.below(1 << 20)) * 0x1p-30f;
    }
    std::vector<double> times;
    for (int i = 0; i <= kProducts; ++i) {
      POSEIDON_RETURN_IF_ERROR(check_cancelled());
      const Nanoseconds begin = task_.clock->now();
      const StackedFactors stacked{.output_gradients = gradients.floats(),
                                   .inputs = inputs.floats()};
      // Clipping asks for the norm first, which is a product of its own.
      if (norm_scope(task_.optimizer) == NormScope::kNetwork) {
        POSEIDON_RETURN_IF_ERROR(factors->measure(layer, i, stacked).status());
      }
      POSEIDON_RETURN_IF_ERROR(factors->step(layer, i, stacked, /*all_gradients=*/1.0));
      if (i > 0) times.push_back(seconds(task_.clock->now() - begin));  // the first one sets up
    }
    const double operations =
        2.0 * static_cast<double>(rows) * static_cast<double>(m) * static_cast<double>(n);
    return operations / std::max(median(std::move(times)), 1e-9);
  }

  const std::shared_ptr<Executor> executor_;
  const ComputeTask& task_;
  const std::vector<std::size_t> layers_;
  std::vector<std::vector<LayerClock::Times>> passes_;  ///< by LayerIndex
};

}  // namespace

absl::StatusOr<ComputeSpeed> measure_compute(const std::shared_ptr<Executor>& executor,
                                             const ComputeTask& task) {
  return Measurement(executor, task).run();
}

}  // namespace poseidon
