#include <cmath>
#include <memory>

#include "tests/twins/reference_device/reference_operators.h"

namespace poseidon {
namespace {

class Accuracy final : public LayerOperator {
 public:
  Accuracy(const LayerSpec& layer, const OperatorOptions& options)
      : samples_(options.batch_size), classes_(element_count(layer.input_shape)) {}

  absl::Status forward(const ForwardArgs& args) override {
    for (std::int64_t n = 0; n < samples_; ++n) {
      const float* scores = args.inputs[0] + n * classes_;
      std::int64_t best = 0;
      for (std::int64_t c = 1; c < classes_; ++c) {
        if (scores[c] > scores[best]) best = c;
      }
      const bool is_hit = n < args.valid_samples && best == args.labels[n];
      args.output[n] = is_hit ? 1.0f : 0.0f;
    }
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& /*args*/) override { return absl::OkStatus(); }

 private:
  const std::int64_t samples_, classes_;
};

class SoftmaxCrossEntropy final : public LayerOperator {
 public:
  SoftmaxCrossEntropy(const LayerSpec& layer, const OperatorOptions& options)
      : layer_(layer), samples_(options.batch_size), classes_(element_count(layer.input_shape)) {}

  absl::Status forward(const ForwardArgs& args) override {
    for (std::int64_t n = 0; n < samples_; ++n) {
      double loss = 0.0;
      for (std::int64_t c = 0; n < args.valid_samples && c < classes_; ++c) {
        loss -= target(args, n, c) * log_probability(args.inputs[0] + n * classes_, c);
      }
      args.output[n] = static_cast<float>(loss);
    }
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    float* const out = args.input_gradients[0];
    if (out == nullptr) return absl::OkStatus();
    const double weight = layer_.loss_weight / static_cast<double>(args.forward.valid_samples);
    for (std::int64_t n = 0; n < samples_; ++n) {
      const float* scores = args.forward.inputs[0] + n * classes_;
      for (std::int64_t c = 0; c < classes_; ++c) {
        out[n * classes_ + c] = 0.0f;
        if (n >= args.forward.valid_samples) continue;
        const double difference = std::exp(log_probability(scores, c)) - target(args.forward, n, c);
        out[n * classes_ + c] = static_cast<float>(difference * weight);
      }
    }
    return absl::OkStatus();
  }

 private:
  // What class c of sample n should get: the label's share, and smoothing's equal share for all.
  double target(const ForwardArgs& args, std::int64_t n, std::int64_t c) const {
    const double equal = layer_.label_smoothing / static_cast<double>(classes_);
    return equal + (c == args.labels[n] ? 1.0 - layer_.label_smoothing : 0.0);
  }

  double log_probability(const float* scores, std::int64_t of) const {
    double largest = scores[0];
    for (std::int64_t c = 1; c < classes_; ++c) largest = std::fmax(largest, scores[c]);
    double sum = 0.0;
    for (std::int64_t c = 0; c < classes_; ++c) sum += std::exp(scores[c] - largest);
    return scores[of] - largest - std::log(sum);
  }

  const LayerSpec layer_;
  const std::int64_t samples_, classes_;
};

}  // namespace

std::unique_ptr<LayerOperator> reference_scores(const LayerSpec& layer,
                                                const OperatorOptions& options) {
  if (layer.type == LayerType::kAccuracy) return std::make_unique<Accuracy>(layer, options);
  return std::make_unique<SoftmaxCrossEntropy>(layer, options);
}

}  // namespace poseidon
