// Layers that sum on a GPU: batch normalisation, losses, accuracy. Why not cuDNN's batch
// normalisation: it takes its statistics from all samples, not from those that count.

#include <memory>
#include <utility>

#include "common/base/check.h"
#include "models/net/batch_norm_errors.h"
#include "worker/engine/cuda/cuda_operators.h"
#include "worker/engine/cuda/cuda_status.h"
#include "worker/engine/cuda/kernels/cuda_kernels.h"

namespace poseidon {
namespace {

constexpr auto kDoubleBytes = static_cast<std::int64_t>(sizeof(double));

class BatchNorm final : public LayerOperator {
 public:
  BatchNorm(const LayerSpec& layer, bool relu, const cuda::Images& images, DeviceMemory memory,
            CudaContext& context)
      : layer_(layer),
        images_(images),
        rule_{.epsilon = layer.epsilon, .momentum = layer.momentum, .relu = relu},
        context_(context),
        memory_(std::move(memory)) {
    auto* const doubles = static_cast<double*>(memory_.get());
    state_.mean = doubles;
    state_.inverse = doubles + images_.channels;
    state_.factors = reinterpret_cast<float*>(doubles + 2 * images_.channels);
    scratch_ = doubles + 5 * images_.channels;  // behind six floats per channel, one of them unused
  }

  /// Of mean, inverse deviation, factors and scratch.
  static std::int64_t memory_bytes(const cuda::Images& images) {
    return (5 * images.channels + static_cast<std::int64_t>(cuda::channel_sums_scratch(images))) *
           kDoubleBytes;
  }

  absl::Status forward(const ForwardArgs& args) override {
    const cuda::Images images = counting(args.valid_samples);
    if (args.phase == Phase::kTest) {
      cuda::batch_norm_test(context_.compute(), images, rule_, args.inputs[0], args.parameters,
                            args.statistics, state_, args.output);
    } else {
      if (args.valid_samples * images.plane < 2) return too_few_for_batch_norm(layer_);
      cuda::batch_norm(context_.compute(), images, rule_, args.inputs[0], args.parameters,
                       args.statistics, scratch_, state_, args.output);
    }
    return launch_status("batch_norm");
  }

  absl::Status backward(const BackwardArgs& args) override {
    cuda::batch_norm_gradient(context_.compute(), counting(args.forward.valid_samples), rule_,
                              args.forward.inputs[0], args.output_gradient, args.forward.parameters,
                              scratch_, state_, args.parameter_gradients, args.input_gradients[0]);
    return launch_status("batch_norm_gradient");
  }

 private:
  cuda::Images counting(std::int64_t valid) const {
    cuda::Images images = images_;
    images.valid = valid;
    return images;
  }

  const LayerSpec layer_;
  const cuda::Images images_;
  const cuda::BatchNormRule rule_;
  CudaContext& context_;
  const DeviceMemory memory_;
  cuda::BatchNormState state_{};
  double* scratch_ = nullptr;
};

class SoftmaxCrossEntropy final : public LayerOperator {
 public:
  SoftmaxCrossEntropy(const LayerSpec& layer, std::int64_t samples, DeviceMemory log_sum,
                      CudaContext& context)
      : weight_(layer.loss_weight),
        rule_{.samples = samples,
              .valid = samples,
              .classes = element_count(layer.input_shape),
              .for_label = 1.0 - layer.label_smoothing,
              .for_each =
                  layer.label_smoothing / static_cast<double>(element_count(layer.input_shape))},
        context_(context),
        log_sum_(std::move(log_sum)) {}

  absl::Status forward(const ForwardArgs& args) override {
    cuda::cross_entropy(context_.compute(), counting(args), args.inputs[0], args.labels, log_sum(),
                        args.output);
    return launch_status("cross_entropy");
  }

  absl::Status backward(const BackwardArgs& args) override {
    if (args.input_gradients[0] == nullptr) return absl::OkStatus();
    const double weight = weight_ / static_cast<double>(args.forward.valid_samples);
    cuda::cross_entropy_gradient(context_.compute(), counting(args.forward), weight,
                                 args.forward.inputs[0], args.forward.labels, log_sum(),
                                 args.input_gradients[0]);
    return launch_status("cross_entropy_gradient");
  }

 private:
  cuda::LossRule counting(const ForwardArgs& args) const {
    cuda::LossRule rule = rule_;
    rule.valid = args.valid_samples;
    return rule;
  }
  double* log_sum() const { return static_cast<double*>(log_sum_.get()); }

  const double weight_;  // of this loss among all
  const cuda::LossRule rule_;
  CudaContext& context_;
  const DeviceMemory log_sum_;  // per sample, of the exponentials
};

class Accuracy final : public LayerOperator {
 public:
  Accuracy(std::int64_t samples, std::int64_t classes, CudaContext& context)
      : samples_(samples), classes_(classes), context_(context) {}

  absl::Status forward(const ForwardArgs& args) override {
    const cuda::LossRule rule = {.samples = samples_,
                                 .valid = args.valid_samples,
                                 .classes = classes_,
                                 .for_label = 1.0,
                                 .for_each = 0.0};
    cuda::accuracy(context_.compute(), rule, args.inputs[0], args.labels, args.output);
    return launch_status("accuracy");
  }

  absl::Status backward(const BackwardArgs& /*args*/) override { return absl::OkStatus(); }

 private:
  const std::int64_t samples_, classes_;
  CudaContext& context_;
};

}  // namespace

MadeOperator make_cuda_batch_norm(const LayerSpec& layer, const OperatorOptions& options,
                                  CudaContext& context) {
  const std::int64_t channels = layer.input_shape.front();
  const cuda::Images images = {.samples = options.batch_size,
                               .channels = channels,
                               .plane = element_count(layer.input_shape) / channels,
                               .valid = options.batch_size,
                               .layout = options.output_layout};
  POSEIDON_ASSIGN_OR_RETURN(DeviceMemory memory, context.allocate(BatchNorm::memory_bytes(images)));
  const bool relu = options.relu == ReluShare::kBoth;
  return std::make_unique<BatchNorm>(layer, relu, images, std::move(memory), context);
}

MadeOperator make_cuda_loss(const LayerSpec& layer, const OperatorOptions& options,
                            CudaContext& context) {
  POSEIDON_ASSIGN_OR_RETURN(DeviceMemory log_sum,
                            context.allocate(options.batch_size * kDoubleBytes));
  return std::make_unique<SoftmaxCrossEntropy>(layer, options.batch_size, std::move(log_sum),
                                               context);
}

MadeOperator make_cuda_accuracy(const LayerSpec& layer, const OperatorOptions& options,
                                CudaContext& context) {
  return std::make_unique<Accuracy>(options.batch_size, element_count(layer.input_shape), context);
}

}  // namespace poseidon
