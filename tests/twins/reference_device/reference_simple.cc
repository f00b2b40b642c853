#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "tests/twins/reference_device/reference_operators.h"
#include "worker/engine/dropout_mask.h"

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
        const bool cut = layer_.type == LayerType::kRelu && args.forward.output[i] <= 0.0f;
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
      apply_dropout(dropout_seed(seed_, layer_.name, sample), layer_.dropout_ratio, outputs_,
                    values + n * outputs_, values + n * outputs_);
    }
  }
};

class Concat final : public LayerOperator {
 public:
  Concat(const LayerSpec& layer, const OperatorOptions& options)
      : samples_(options.batch_size), outputs_(element_count(layer.output_shape)) {
    const std::int64_t plane = outputs_ / layer.output_shape.front();
    for (const std::int64_t channels : layer.concat_channels) sizes_.push_back(channels * plane);
  }

  absl::Status forward(const ForwardArgs& args) override {
    for_parts([&](std::size_t input, std::int64_t in, std::int64_t out) {
      args.output[out] = args.inputs[input][in];
    });
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    for_parts([&](std::size_t input, std::int64_t in, std::int64_t out) {
      if (float* const target = args.input_gradients[input]; target != nullptr) {
        target[in] = args.output_gradient[out];
      }
    });
    return absl::OkStatus();
  }

 private:
  // body(input, element of that input, element of the output)
  template <typename Body>
  void for_parts(const Body& body) const {
    for (std::int64_t n = 0; n < samples_; ++n) {
      std::int64_t out = n * outputs_;
      for (std::size_t input = 0; input < sizes_.size(); ++input) {
        for (std::int64_t i = 0; i < sizes_[input]; ++i) body(input, n * sizes_[input] + i, out++);
      }
    }
  }

  const std::int64_t samples_, outputs_;
  std::vector<std::int64_t> sizes_;  // per input, elements of one sample
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
    case LayerType::kConcat:
      return std::make_unique<Concat>(layer, options);
    case LayerType::kSoftmaxCrossEntropy:
    case LayerType::kAccuracy:
    case LayerType::kConvolution:
    case LayerType::kPooling:
    case LayerType::kLrn:
    case LayerType::kBatchNorm:
      break;
  }
  POSEIDON_CHECK(false, "layer type without an operator");
  return nullptr;
}

}  // namespace poseidon
