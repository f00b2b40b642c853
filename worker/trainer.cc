#include "worker/trainer.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/tensor/kernels.h"
#include "common/tensor/scan.h"
#include "worker/data/formats/storage_failure.h"
#include "worker/layer_clock.h"

namespace poseidon {
namespace {

/// How long one look for the next batch lasts before cancellation is looked at again ...
constexpr Milliseconds kBatchPatience{500};
/// ... and how long the disk may take in all.
constexpr Milliseconds kBatchTimeout{600000};

class Run {
 public:
  explicit Run(const TrainerSetup& setup) : s_(setup), times_(&clock_, setup.traffic->layers()) {}

  absl::Status train() {
    // What the interrupted run may have told of this test was taken back with the iterations after.
    if (s_.first_iteration > 0 && s_.first_iteration < s_.job->iterations &&
        test_is_due(s_.first_iteration)) {
      POSEIDON_RETURN_IF_ERROR(test(s_.first_iteration));
    }
    for (Iteration i = s_.first_iteration; i < s_.job->iterations; ++i) {
      POSEIDON_RETURN_IF_ERROR(iterate(i));
      if (i + 1 < s_.job->iterations && test_is_due(i + 1)) {
        POSEIDON_RETURN_IF_ERROR(test(i + 1));
      }
    }
    // The last test and the model file are about the same parameters: the servers' own.
    POSEIDON_RETURN_IF_ERROR(s_.sync->finish(s_.job->iterations));
    POSEIDON_RETURN_IF_ERROR(check_final_parameters());
    if (test_is_due(s_.job->iterations)) POSEIDON_RETURN_IF_ERROR(test(s_.job->iterations));
    return absl::OkStatus();
  }

 private:
  absl::Status check_cancelled() const {
    return s_.cancelled->load() ? absl::CancelledError("the job was stopped") : absl::OkStatus();
  }

  /// `kind`: "training" or "test".
  template <typename Batches>
  absl::StatusOr<const Batch*> next_batch(Batches& batches, std::string_view kind) {
    for (Milliseconds waited{0}; waited < kBatchTimeout; waited += kBatchPatience) {
      POSEIDON_RETURN_IF_ERROR(check_cancelled());
      absl::StatusOr<const Batch*> batch = batches.next(kBatchPatience);
      if (absl::IsDeadlineExceeded(batch.status())) continue;
      if (!batch.ok()) return data_error(batch.status());
      return batch;
    }
    return storage_failure(absl::DeadlineExceededError(
        str_cat("no ", kind, " batch within ", kBatchTimeout.count(),
                " ms: does the disk with the ", kind, " data answer?")));
  }

  /// All workers meet errors in samples; errors of the system while reading (an I/O error, a stale
  /// handle) are this machine's alone.
  static absl::Status data_error(const absl::Status& status) {
    return absl::IsInternal(status) ? storage_failure(status) : status;
  }

  /// Every forward pass, training or test, waits per layer for the parameters after `steps` steps.
  ExecutionHooks hooks(Iteration steps, MicroBatch part = {}) {
    return {.before_forward =
                [this, steps](LayerIndex layer, const PartArrived& part_arrived) {
                  times_.stop_forward();
                  const absl::Status status = s_.sync->wait_parameters(
                      layer, steps,
                      {.piece_elements = kLeastPartElements, .arrived = part_arrived});
                  times_.run_forward(layer);
                  return status;
                },
            .same_parameters = part.index > 0,
            .after_backward =
                [this, steps, part](LayerIndex layer) {
                  times_.stop_backward(layer);
                  if (accumulate(layer, part)) s_.sync->gradient_ready(layer, steps, part);
                  times_.run_backward();
                }};
  }

  /// The layers' time is counted by tell_times, that of copies nowhere.
  void trace(Stage stage, Iteration iteration, const DeviceTimes& pass) {
    Tracer& tracer = s_.traffic->node().tracer();
    for (const LayerInterval& ran : pass.layers) {
      tracer.record({.stage = stage,
                     .begin = ran.begin,
                     .end = ran.end,
                     .iteration = iteration,
                     .layer = ran.layer});
    }
    for (const CopyInterval& copy : pass.copies) {
      tracer.record({.stage = copy.stage,
                     .begin = copy.begin,
                     .end = copy.end,
                     .iteration = iteration,
                     .layer = copy.layer,
                     .bytes = static_cast<std::size_t>(copy.bytes)});
    }
  }

  /// Adds up the gradients of the parts of a batch, in their order; their mean takes the place of
  /// the last. Whether there is something to report. (Factors are stacked instead.)
  bool accumulate(LayerIndex layer, MicroBatch part) {
    const std::span<float> gradients = s_.executor->gradients(layer);
    if (part.count == 1 || gradients.empty()) return true;
    if (sums_.size() <= layer.value()) sums_.resize(layer.value() + 1);
    std::vector<float>& sum = sums_[layer.value()];
    if (part.index == 0) {
      sum.assign(gradients.begin(), gradients.end());
      return false;
    }
    const auto added = reinterpret_cast<const std::byte*>(gradients.data());
    kernels().add(sum.data(), added, sum.size());
    if (!part.is_last()) return false;
    const float scale = 1.0f / static_cast<float>(part.count);
    std::transform(sum.begin(), sum.end(), gradients.begin(),
                   [scale](float value) { return value * scale; });
    return true;
  }

  /// One part of a batch, in memory of its own: the engine takes batches of its own size.
  const Batch& cut(const Batch& batch, MicroBatch part) {
    if (part.count == 1) return batch;
    const std::int64_t samples = batch.samples / part.count;
    const auto values = static_cast<std::ptrdiff_t>(batch.images.size()) / part.count;
    part_.samples = samples;
    part_.valid_samples = samples;
    part_.first_sample = batch.first_sample + static_cast<std::uint64_t>(part.index * samples);
    part_.images.assign(batch.images.begin() + part.index * values,
                        batch.images.begin() + (part.index + 1) * values);
    part_.labels.assign(batch.labels.begin() + part.index * samples,
                        batch.labels.begin() + (part.index + 1) * samples);
    return part_;
  }

  absl::Status iterate(Iteration iteration) {
    const Nanoseconds since = clock_.now();
    POSEIDON_ASSIGN_OR_RETURN(const Batch* batch, next_batch(*s_.train, "training"));
    s_.traffic->node().took(
        {.stage = Stage::kInput, .begin = since, .end = clock_.now(), .iteration = iteration});
    ForwardResult sum;
    begin_times(iteration);
    for (MicroBatch part{.index = 0, .count = s_.job->micro_batches}; part.index < part.count;
         ++part.index) {
      POSEIDON_ASSIGN_OR_RETURN(const ForwardResult result,
                                train_on(cut(*batch, part), iteration, part));
      sum.loss_sum += result.loss_sum;
      sum.samples += result.samples;
    }
    tell_times();
    s_.traffic->node().iteration(clock_.now() - since, sum.samples, sum.mean_loss());
    s_.traffic->node().set(NodeGauge::kIteration, iteration + 1);
    s_.events->iteration_done(iteration, sum.mean_loss());
    return absl::OkStatus();
  }

  /// Once for all parts of a batch: a trace that begins within an iteration may lack its copies.
  void begin_times(Iteration iteration) {
    const bool is_traced = s_.traffic->node().tracer().on();
    const bool is_asked = is_traced || asks_the_device(iteration - s_.first_iteration);
    s_.executor->time_passes(is_traced  ? PassTiming::kLayersAndCopies
                             : is_asked ? PassTiming::kLayers
                                        : PassTiming::kNothing);
    times_.begin_iteration(is_asked || !s_.executor->times_itself());
  }

  void tell_times() {
    LayerClock::Times all;
    for (std::uint32_t l = 0; l < times_.times().size(); ++l) {
      const LayerClock::Times& layer = times_.times()[l];
      s_.traffic->computed(LayerIndex(l), layer.forward, layer.backward);
      all.forward += layer.forward;
      all.backward += layer.backward;
    }
    s_.traffic->node().took(Stage::kForward, all.forward);
    s_.traffic->node().took(Stage::kBackward, all.backward);
  }

  absl::StatusOr<ForwardResult> train_on(const Batch& batch, Iteration iteration, MicroBatch part) {
    POSEIDON_RETURN_IF_ERROR(check_cancelled());
    const ExecutionHooks hooks = this->hooks(iteration, part);
    times_.begin_forward();
    POSEIDON_ASSIGN_OR_RETURN(const ForwardResult result,
                              s_.executor->forward(batch, Phase::kTrain, hooks));
    s_.traffic->batch_passed();
    trace(Stage::kForward, iteration, times_.end_forward(s_.executor->device_times()));
    const double loss = result.mean_loss();
    if (!std::isfinite(loss)) {
      s_.traffic->node().count(NodeCount::kNotFinite);
      return absl::FailedPreconditionError(
          absl::StrCat("the loss became ", loss, " in iteration ", iteration, " on worker ",
                       s_.rank.value(), "; the first values that are no finite number are in ",
                       s_.executor->first_nonfinite_layer(),
                       ": try a smaller optimizer.learning_rate, or check the data and its scale"));
    }
    POSEIDON_RETURN_IF_ERROR(s_.events->before_backward(iteration));
    POSEIDON_RETURN_IF_ERROR(stage_next(iteration, part));
    POSEIDON_RETURN_IF_ERROR(check_cancelled());  // a large layer's pass takes seconds
    times_.begin_backward();
    POSEIDON_RETURN_IF_ERROR(s_.executor->backward(hooks));
    s_.traffic->batch_passed();
    trace(Stage::kBackward, iteration, times_.end_backward(s_.executor->device_times()));
    return result;
  }

  /// Parts of a batch are cut when their turn comes.
  absl::Status stage_next(Iteration iteration, MicroBatch part) {
    if (part.count > 1 || iteration + 1 == s_.job->iterations) return absl::OkStatus();
    const Batch* const next = s_.train->peek();
    return next == nullptr ? absl::OkStatus() : s_.executor->stage(*next);
  }

  bool test_is_due(Iteration steps) const {
    if (s_.test == nullptr) return false;
    if (steps == s_.job->iterations) return true;
    const std::int64_t every = s_.job->test_every_iterations;
    return every > 0 && steps % every == 0;
  }

  absl::Status test(Iteration steps) {
    POSEIDON_RETURN_IF_ERROR(s_.events->before_test(steps));
    const Nanoseconds since = clock_.now();
    s_.executor->time_passes(PassTiming::kNothing);  // a trace has the test as a whole
    ExecutionHooks hooks = this->hooks(steps);
    ForwardResult sum;
    for (std::int64_t i = 0; i < s_.test->batches(); ++i) {
      hooks.same_parameters = i > 0;  // the next ones need gradients of ours
      POSEIDON_ASSIGN_OR_RETURN(const Batch* batch, next_batch(*s_.test, "test"));
      times_.begin_forward();  // and never ended: no pass of the training
      POSEIDON_ASSIGN_OR_RETURN(const ForwardResult result,
                                s_.executor->forward(*batch, Phase::kTest, hooks));
      s_.traffic->batch_passed();
      sum.loss_sum += result.loss_sum;
      sum.correct += result.correct;
      sum.samples += result.samples;
    }
    s_.traffic->node().took(
        {.stage = Stage::kTest, .begin = since, .end = clock_.now(), .iteration = steps});
    s_.events->tested(steps,
                      {.loss_sum = sum.loss_sum, .correct = sum.correct, .samples = sum.samples});
    return absl::OkStatus();
  }

  /// The last step is followed by no forward pass that would notice.
  absl::Status check_final_parameters() {
    const NetSpec& net = s_.executor->net();
    const std::vector<std::size_t> layers = net.parameter_layers();
    for (std::uint32_t l = 0; l < layers.size(); ++l) {
      if (all_finite(s_.executor->parameters(LayerIndex(l)))) continue;
      s_.traffic->node().count(NodeCount::kNotFinite);
      return absl::FailedPreconditionError(absl::StrCat(
          "after the last iteration, ", s_.job->iterations - 1, ", the parameters of layer ",
          net.layers[layers[l]].name,
          " hold values that are no finite number: try a smaller optimizer.learning_rate"));
    }
    return absl::OkStatus();
  }

  const TrainerSetup s_;
  const SystemClock clock_;
  LayerClock times_;
  Batch part_;                            ///< see cut
  std::vector<std::vector<float>> sums_;  ///< by LayerIndex; see accumulate
};

}  // namespace

absl::Status train(const TrainerSetup& setup) { return Run(setup).train(); }

}  // namespace poseidon
