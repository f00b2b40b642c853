#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "worker/engine/dropout_mask.h"
#include "worker/engine/reference/reference_operators.h"

namespace poseidon {
namespace {

class SimpleOperator : public LayerOperator {
 public:
  SimpleOperator(const LayerSpec& layer, const OperatorOptions& options)
      : layer_(layer),
        seed_(options.seed),
        samples_(options.batch_size),
        inputs_(element_count(layer.input_shape)),
        outputs_(element_count(layer.output_shape)) {}

 protected:
  const LayerSpec layer_;
  const std::uint64_t seed_;
  const std::int64_t samples_, inputs_, outputs_;
};

class FullyConnected final : public SimpleOperator {
 public:
  using SimpleOperator::SimpleOperator;

  absl::Status forward(const ForwardArgs& args) override {
    const float* weight = args.parameters;
    for (std::int64_t n = 0; n < samples_; ++n) {
      for (std::int64_t o = 0; o < outputs_; ++o) {
        double sum = has_bias() ? weight[outputs_ * inputs_ + o] : 0.0;
        for (std::int64_t i = 0; i < inputs_; ++i) {
          sum += static_cast<double>(weight[o * inputs_ + i]) * args.inputs[0][n * inputs_ + i];
        }
        args.output[n * outputs_ + o] = static_cast<float>(sum);
      }
    }
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    const float* gradient = args.output_gradient;
    for (std::int64_t o = 0; args.parameter_gradients != nullptr && o < outputs_; ++o) {
      double bias = 0.0;
      for (std::int64_t n = 0; n < samples_; ++n) bias += gradient[n * outputs_ + o];
      if (has_bias()) {
        args.parameter_gradients[outputs_ * inputs_ + o] = static_cast<float>(bias);
      }
      for (std::int64_t i = 0; i < inputs_; ++i) {
        double sum = 0.0;
        for (std::int64_t n = 0; n < samples_; ++n) {
          sum += static_cast<double>(gradient[n * outputs_ + o]) *
                 args.forward.inputs[0][n * inputs_ + i];
        }
        args.parameter_gradients[o * inputs_ + i] = static_cast<float>(sum);
      }
    }
    if (args.input_gradients[0] == nullptr) return absl::OkStatus();
    for (std::int64_t n = 0; n < samples_; ++n) {
      for (std::int64_t i = 0; i < inputs_; ++i) {
        double sum = 0.0;
        for (std::int64_t o = 0; o < outputs_; ++o) {
          sum += static_cast<double>(gradient[n * outputs_ + o]) *
                 args.forward.parameters[o * inputs_ + i];
        }
        args.input_gradients[0][n * inputs_ + i] = static_cast<float>(sum);
      }
    }
    return absl::OkStatus();
  }

 private:
  bool has_bias() const { return layer_.parameters.size() > 1; }
};

class Elementwise final : public SimpleOperator {
 public:
  using SimpleOperator::SimpleOperator;

  absl::Status forward(const ForwardArgs& args) override {
    for (std::int64_t i = 0; i < samples_ * outputs_; ++i) {
      double sum = 0.0;
      for (const float* input : args.inputs) sum += input[i];
      const bool cut = layer_.type == LayerType::kRelu && sum <= 0.0;
      args.output[i] = cut ? 0.0f : static_cast<float>(sum);
    }
    if (layer_.type == LayerType::kDropout && args.phase == Phase::kTrain) {
      mask(args.first_sample, args.output);
    }
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    for (float* const out : args.input_gradients) {
      if (out == nullptr) continue;
      for (std::int64_t i = 0; i < samples_ * outputs_; ++i) {
        const bool cut = layer_.type == LayerType::kRelu && args.forward.inputs[0][i] <= 0.0f;
        out[i] = cut ? 0.0f : args.output_gradient[i];
      }
      if (layer_.type == LayerType::kDropout) mask(args.forward.first_sample, out);
    }
    return absl::OkStatus();
  }

 private:
  void mask(std::uint64_t first_sample, float* values) const {
    for (std::int64_t n = 0; n < samples_; ++n) {
      const auto sample = first_sample + static_cast<std::uint64_t>(n);
      apply_dropout(dropout_seed(seed_, layer_.name, sample),
                    static_cast<float>(layer_.dropout_ratio), outputs_, values + n * outputs_,
                    values + n * outputs_);
    }
  }
};

class Scores final : public SimpleOperator {
 public:
  using SimpleOperator::SimpleOperator;

  absl::Status forward(const ForwardArgs& args) override {
    for (std::int64_t n = 0; n < samples_; ++n) {
      args.output[n] = 0.0f;
      if (n >= args.valid_samples) continue;
      const float* scores = args.inputs[0] + n * inputs_;
      const std::int32_t label = args.labels[n];
      args.output[n] = layer_.type == LayerType::kAccuracy
                           ? (first_largest(scores) == label ? 1.0f : 0.0f)
                           : static_cast<float>(-std::log(probability(scores, label)));
    }
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    if (args.input_gradients[0] == nullptr) return absl::OkStatus();
    for (std::int64_t n = 0; n < samples_; ++n) {
      const float* scores = args.forward.inputs[0] + n * inputs_;
      for (std::int64_t c = 0; c < inputs_; ++c) {
        const double expected = c == args.forward.labels[n] ? 1.0 : 0.0;
        const double gradient = n < args.forward.valid_samples
                                    ? (probability(scores, c) - expected) /
                                          static_cast<double>(args.forward.valid_samples)
                                    : 0.0;
        args.input_gradients[0][n * inputs_ + c] = static_cast<float>(gradient);
      }
    }
    return absl::OkStatus();
  }

 private:
  std::int64_t first_largest(const float* scores) const {
    std::int64_t best = 0;
    for (std::int64_t c = 1; c < inputs_; ++c) {
      if (scores[c] > scores[best]) best = c;
    }
    return best;
  }
  double probability(const float* scores, std::int64_t of) const {
    const double largest = scores[first_largest(scores)];
    double sum = 0.0;
    for (std::int64_t c = 0; c < inputs_; ++c) sum += std::exp(scores[c] - largest);
    return std::exp(scores[of] - largest) / sum;
  }
};

}  // namespace

std::unique_ptr<LayerOperator> reference_simple(const LayerSpec& layer,
                                                const OperatorOptions& options) {
  switch (layer.type) {
    case LayerType::kFullyConnected:
      return std::make_unique<FullyConnected>(layer, options);
    case LayerType::kRelu:
    case LayerType::kDropout:
    case LayerType::kAdd:
      return std::make_unique<Elementwise>(layer, options);
    case LayerType::kSoftmaxCrossEntropy:
    case LayerType::kAccuracy:
      return std::make_unique<Scores>(layer, options);
    case LayerType::kConvolution:
    case LayerType::kPooling:
    case LayerType::kLrn:
      break;
  }
  POSEIDON_CHECK(false, "layer type without an operator");
  return nullptr;
}

}  // namespace poseidon
