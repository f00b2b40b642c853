// Fully connected layers on cuBLASLt: output = input weight^T + bias.

#include <memory>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "worker/engine/cuda/cuda_operators.h"
#include "worker/engine/cuda/cuda_status.h"
#include "worker/engine/cuda/kernels/cuda_kernels.h"
#include "worker/engine/cuda/matrix_product.h"

namespace poseidon {
namespace {

class FullyConnected final : public LayerOperator {
 public:
  FullyConnected(const LayerSpec& layer, const OperatorOptions& options, CudaContext& context)
      : layer_(layer.name),
        samples_(options.batch_size),
        inputs_(element_count(layer.input_shape)),
        outputs_(layer.output_shape.front()),
        has_bias_(layer.parameters.size() > 1),
        relu_(options.relu == ReluShare::kForward),
        context_(context) {}

  absl::Status open(bool wants_input_gradient) {
    POSEIDON_RETURN_IF_ERROR(context_.reserve_workspace(kProductWorkspaceBytes));
    POSEIDON_ASSIGN_OR_RETURN(
        forward_,
        MatrixProduct::create(
            context_,
            {.rows = samples_, .columns = outputs_, .depth = inputs_, .right_transposed = true}));
    POSEIDON_ASSIGN_OR_RETURN(
        of_weight_,
        MatrixProduct::create(
            context_,
            {.rows = outputs_, .columns = inputs_, .depth = samples_, .left_transposed = true}));
    if (!wants_input_gradient) return absl::OkStatus();
    POSEIDON_ASSIGN_OR_RETURN(
        of_input_,
        MatrixProduct::create(context_, {.rows = samples_, .columns = inputs_, .depth = outputs_}));
    return absl::OkStatus();
  }

  absl::Status forward(const ForwardArgs& args) override {
    return in_layer(layer_, run_forward(args));
  }
  absl::Status backward(const BackwardArgs& args) override {
    return in_layer(layer_, run_backward(args));
  }

 private:
  absl::Status run_forward(const ForwardArgs& args) {
    POSEIDON_RETURN_IF_ERROR(forward_->run(context_.compute(), args.inputs[0], args.parameters,
                                           args.output, context_.workspace()));
    if (!has_bias_) return absl::OkStatus();
    cuda::add_bias(context_.compute(),
                   {.samples = samples_, .channels = outputs_, .plane = 1, .valid = samples_},
                   {.bias = args.parameters + outputs_ * inputs_, .relu = relu_}, args.output);
    return launch_status("add_bias");
  }

  absl::Status run_backward(const BackwardArgs& args) {
    if (args.parameter_gradients != nullptr) {
      POSEIDON_RETURN_IF_ERROR(of_weight_->run(context_.compute(), args.output_gradient,
                                               args.forward.inputs[0], args.parameter_gradients,
                                               context_.workspace()));
      if (has_bias_) {
        cuda::column_sums(context_.compute(), args.output_gradient, samples_, outputs_,
                          args.parameter_gradients + outputs_ * inputs_);
        POSEIDON_RETURN_IF_ERROR(launch_status("column_sums"));
      }
    }
    if (args.input_gradients[0] == nullptr) return absl::OkStatus();
    return of_input_->run(context_.compute(), args.output_gradient, args.forward.parameters,
                          args.input_gradients[0], context_.workspace());
  }

  const std::string layer_;
  const std::int64_t samples_, inputs_, outputs_;
  const bool has_bias_;
  const bool relu_;  ///< of the output, behind the bias
  CudaContext& context_;
  std::unique_ptr<MatrixProduct> forward_, of_weight_, of_input_;
};

}  // namespace

MadeOperator make_cuda_fully_connected(const LayerSpec& layer, const OperatorOptions& options,
                                       CudaContext& context) {
  auto made = std::make_unique<FullyConnected>(layer, options, context);
  POSEIDON_RETURN_IF_ERROR(made->open(options.wants_input_gradient));
  return made;
}

}  // namespace poseidon
