#include <cmath>
#include <memory>
#include <vector>

#include "models/net/batch_norm_errors.h"
#include "tests/twins/reference_device/reference_operators.h"

namespace poseidon {
namespace {

// Ioffe, Szegedy: "Batch Normalization", 2015, section 3; running variance unbiased as in PyTorch.
class BatchNorm final : public LayerOperator {
 public:
  BatchNorm(const LayerSpec& layer, const OperatorOptions& options)
      : layer_(layer),
        samples_(options.batch_size),
        channels_(layer.input_shape.front()),
        plane_(element_count(layer.input_shape) / channels_) {}

  absl::Status forward(const ForwardArgs& args) override {
    if (args.phase == Phase::kTrain && args.valid_samples * plane_ < 2) {
      return too_few_for_batch_norm(layer_);
    }
    for (std::int64_t c = 0; c < channels_; ++c) {
      Moments of = args.phase == Phase::kTrain
                       ? moments(args, c)
                       : Moments{args.statistics[c], args.statistics[channels_ + c]};
      const double scale = args.parameters[c] / std::sqrt(of.variance + layer_.epsilon);
      for_values(samples_, c, [&](std::int64_t i) {
        args.output[i] = static_cast<float>((args.inputs[0][i] - of.mean) * scale +
                                            args.parameters[channels_ + c]);
      });
      if (args.phase == Phase::kTrain) follow(args, c, of);
    }
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    const float* in = args.forward.inputs[0];
    const float* gradient = args.output_gradient;
    const std::int64_t valid = args.forward.valid_samples;
    for (std::int64_t c = 0; c < channels_; ++c) {
      const Moments of = moments(args.forward, c);
      const double inverse = 1.0 / std::sqrt(of.variance + layer_.epsilon);
      double sum = 0.0, product = 0.0;
      for_values(valid, c, [&](std::int64_t i) {
        sum += gradient[i];
        product += gradient[i] * (in[i] - of.mean) * inverse;
      });
      args.parameter_gradients[c] = static_cast<float>(product);
      args.parameter_gradients[channels_ + c] = static_cast<float>(sum);
      float* const out = args.input_gradients[0];
      if (out == nullptr) continue;
      for_values(samples_, c, [&](std::int64_t i) { out[i] = 0.0f; });
      const double count = static_cast<double>(valid * plane_);
      for_values(valid, c, [&](std::int64_t i) {
        const double normalised = (in[i] - of.mean) * inverse;
        out[i] = static_cast<float>(args.forward.parameters[c] * inverse *
                                    (gradient[i] - sum / count - normalised * product / count));
      });
    }
    return absl::OkStatus();
  }

 private:
  struct Moments {
    double mean = 0.0;
    double variance = 0.0;  // biased
  };

  Moments moments(const ForwardArgs& args, std::int64_t c) const {
    const double count = static_cast<double>(args.valid_samples * plane_);
    Moments of;
    for_values(args.valid_samples, c,
               [&](std::int64_t i) { of.mean += args.inputs[0][i] / count; });
    for_values(args.valid_samples, c, [&](std::int64_t i) {
      const double apart = args.inputs[0][i] - of.mean;
      of.variance += apart * apart / count;
    });
    return of;
  }

  void follow(const ForwardArgs& args, std::int64_t c, const Moments& of) const {
    const double count = static_cast<double>(args.valid_samples * plane_);
    const auto move = [&](float& running, double batch) {
      running = static_cast<float>((1.0 - layer_.momentum) * running + layer_.momentum * batch);
    };
    move(args.statistics[c], of.mean);
    move(args.statistics[channels_ + c], of.variance * count / (count - 1.0));
  }

  template <typename Body>
  void for_values(std::int64_t samples, std::int64_t c, const Body& body) const {
    for (std::int64_t n = 0; n < samples; ++n) {
      for (std::int64_t i = 0; i < plane_; ++i) body((n * channels_ + c) * plane_ + i);
    }
  }

  const LayerSpec layer_;
  const std::int64_t samples_, channels_, plane_;
};

}  // namespace

std::unique_ptr<LayerOperator> reference_batch_norm(const LayerSpec& layer,
                                                    const OperatorOptions& options) {
  return std::make_unique<BatchNorm>(layer, options);
}

}  // namespace poseidon
