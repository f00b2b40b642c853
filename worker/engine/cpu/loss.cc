// Softmax cross-entropy and accuracy. Sums are in double: with 20,000 classes a float sum would
// lose digits that the comparison of runs with different numbers of workers can see.

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "worker/engine/cpu/loop_operators.h"
#include "worker/engine/cpu/parallel.h"

namespace poseidon {
namespace {

constexpr std::int64_t kLossGrain = 2048;

std::int64_t grain(std::int64_t classes) { return std::max<std::int64_t>(1, kLossGrain / classes); }

class SoftmaxCrossEntropy final : public LayerOperator {
 public:
  SoftmaxCrossEntropy(const LayerSpec& layer, std::int64_t samples)
      : samples_(samples),
        classes_(element_count(layer.input_shape)),
        weight_(layer.loss_weight),
        for_label_(1.0 - layer.label_smoothing),
        for_each_(layer.label_smoothing / static_cast<double>(classes_)),
        log_sum_(static_cast<std::size_t>(samples)) {}

  absl::Status forward(const ForwardArgs& args) override {
    std::fill_n(args.output, samples_, 0.0f);
    parallel_for(args.valid_samples, grain(classes_), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t sample = begin; sample < end; ++sample) {
        const float* scores = args.inputs[0] + sample * classes_;
        // Shifted by the largest score, so that no exponential overflows.
        const double largest = *std::max_element(scores, scores + classes_);
        double sum = 0.0;
        for (std::int64_t c = 0; c < classes_; ++c) sum += std::exp(scores[c] - largest);
        const double log_sum = largest + std::log(sum);
        log_sum_[static_cast<std::size_t>(sample)] = log_sum;
        double expected = for_label_ * scores[args.labels[sample]];
        if (for_each_ > 0.0) {
          for (std::int64_t c = 0; c < classes_; ++c) expected += for_each_ * scores[c];
        }
        args.output[sample] = static_cast<float>(log_sum - expected);
      }
    });
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    float* const gradient = args.input_gradients[0];
    if (gradient == nullptr) return absl::OkStatus();
    const std::int64_t valid = args.forward.valid_samples;
    const double weight = weight_ / static_cast<double>(valid);
    std::fill(gradient + valid * classes_, gradient + samples_ * classes_, 0.0f);
    parallel_for(valid, grain(classes_), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t sample = begin; sample < end; ++sample) {
        const float* scores = args.forward.inputs[0] + sample * classes_;
        float* out = gradient + sample * classes_;
        const double log_sum = log_sum_[static_cast<std::size_t>(sample)];
        const std::int32_t label = args.forward.labels[sample];
        for (std::int64_t c = 0; c < classes_; ++c) {
          const double expected = for_each_ + (c == label ? for_label_ : 0.0);
          out[c] = static_cast<float>((std::exp(scores[c] - log_sum) - expected) * weight);
        }
      }
    });
    return absl::OkStatus();
  }

 private:
  const std::int64_t samples_, classes_;
  const double weight_;                // of this loss among all
  const double for_label_, for_each_;  // the label's share, and that of every class (smoothing)
  std::vector<double> log_sum_;        // per sample, of the exponentials
};

class Accuracy final : public LayerOperator {
 public:
  Accuracy(std::int64_t samples, std::int64_t classes) : samples_(samples), classes_(classes) {}

  absl::Status forward(const ForwardArgs& args) override {
    std::fill_n(args.output, samples_, 0.0f);
    for (std::int64_t sample = 0; sample < args.valid_samples; ++sample) {
      const float* scores = args.inputs[0] + sample * classes_;
      args.output[sample] = is_hit(scores, args.labels[sample]) ? 1.0f : 0.0f;
    }
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& /*args*/) override { return absl::OkStatus(); }

 private:
  // The label's score must beat those before it and reach those after it: the first of equal scores
  // is the answer, and scores that are NaN are never a hit.
  bool is_hit(const float* scores, std::int32_t label) const {
    const float own = scores[label];
    return std::all_of(scores, scores + label, [own](float other) { return own > other; }) &&
           std::all_of(scores + label, scores + classes_,
                       [own](float other) { return own >= other; });
  }

  const std::int64_t samples_, classes_;
};

}  // namespace

std::unique_ptr<LayerOperator> make_softmax_cross_entropy(const LayerSpec& layer,
                                                          const OperatorOptions& options) {
  return std::make_unique<SoftmaxCrossEntropy>(layer, options.batch_size);
}

std::unique_ptr<LayerOperator> make_accuracy(const LayerSpec& layer,
                                             const OperatorOptions& options) {
  return std::make_unique<Accuracy>(options.batch_size, element_count(layer.input_shape));
}

}  // namespace poseidon
