// Fully connected on oneDNN. All tensors keep the plain layout: the weights of these layers are the
// largest of a network, and converting them costs more than a faster product gives back.

#include <memory>

#include "worker/engine/cpu/onednn_operator.h"

namespace poseidon {
namespace {

class FullyConnected final : public OnednnOperator {
 public:
  FullyConnected(const LayerSpec& layer, const OperatorOptions& options, OnednnContext& context)
      : OnednnOperator(layer.name, context),
        weight_elements_(element_count(layer.parameters.front().shape)),
        has_bias_(layer.parameters.size() > 1) {
    const std::int64_t inputs = element_count(layer.input_shape);
    const std::int64_t outputs = layer.output_shape.front();
    const auto input = plain_desc({options.batch_size, inputs});
    const auto weight = plain_desc({outputs, inputs});
    const auto bias = has_bias_ ? plain_desc({outputs}) : dnnl::memory::desc();
    const auto output = plain_desc({options.batch_size, outputs});
    input_ = handle(context, input);
    weight_ = handle(context, weight);
    output_ = handle(context, output);
    input_gradient_ = handle(context, input);
    weight_gradient_ = handle(context, weight);
    output_gradient_ = handle(context, output);
    forward_arguments_ = {
        {DNNL_ARG_SRC, input_}, {DNNL_ARG_WEIGHTS, weight_}, {DNNL_ARG_DST, output_}};
    weights_arguments_ = {{DNNL_ARG_SRC, input_},
                          {DNNL_ARG_DIFF_DST, output_gradient_},
                          {DNNL_ARG_DIFF_WEIGHTS, weight_gradient_}};
    data_arguments_ = {{DNNL_ARG_DIFF_DST, output_gradient_},
                       {DNNL_ARG_WEIGHTS, weight_},
                       {DNNL_ARG_DIFF_SRC, input_gradient_}};
    if (has_bias_) {
      bias_ = handle(context, bias);
      bias_gradient_ = handle(context, bias);
      forward_arguments_.emplace(DNNL_ARG_BIAS, bias_);
      weights_arguments_.emplace(DNNL_ARG_DIFF_BIAS, bias_gradient_);
    }
    // An empty descriptor of the bias means: none.
    const dnnl::inner_product_forward::primitive_desc forward(
        dnnl::inner_product_forward::desc(dnnl::prop_kind::forward_training, input, weight, bias,
                                          output),
        context.engine);
    forward_ = dnnl::inner_product_forward(forward);
    backward_weights_ = dnnl::inner_product_backward_weights(
        {dnnl::inner_product_backward_weights::desc(input, weight, bias, output), context.engine,
         forward});
    if (options.wants_input_gradient) {
      backward_data_ = dnnl::inner_product_backward_data(
          {dnnl::inner_product_backward_data::desc(input, weight, output), context.engine,
           forward});
    }
  }

 private:
  absl::Status run_forward(const ForwardArgs& args) override {
    input_.set_data_handle(const_cast<float*>(args.inputs[0]));
    weight_.set_data_handle(const_cast<float*>(args.parameters));
    output_.set_data_handle(args.output);
    if (has_bias_) bias_.set_data_handle(const_cast<float*>(args.parameters + weight_elements_));
    forward_.execute(context_.stream, forward_arguments_);
    return absl::OkStatus();
  }

  absl::Status run_backward(const BackwardArgs& args) override {
    input_.set_data_handle(const_cast<float*>(args.forward.inputs[0]));
    output_gradient_.set_data_handle(const_cast<float*>(args.output_gradient));
    if (args.parameter_gradients != nullptr) {
      weight_gradient_.set_data_handle(args.parameter_gradients);
      if (has_bias_) bias_gradient_.set_data_handle(args.parameter_gradients + weight_elements_);
      backward_weights_.execute(context_.stream, weights_arguments_);
    }
    if (args.input_gradients[0] == nullptr) return absl::OkStatus();
    weight_.set_data_handle(const_cast<float*>(args.forward.parameters));
    input_gradient_.set_data_handle(args.input_gradients[0]);
    backward_data_.execute(context_.stream, data_arguments_);
    return absl::OkStatus();
  }

  const std::int64_t weight_elements_;
  const bool has_bias_;
  dnnl::inner_product_forward forward_;
  dnnl::inner_product_backward_weights backward_weights_;
  dnnl::inner_product_backward_data backward_data_;
  dnnl::memory input_, weight_, bias_, output_;
  dnnl::memory input_gradient_, weight_gradient_, bias_gradient_, output_gradient_;
  Arguments forward_arguments_, weights_arguments_, data_arguments_;
};

}  // namespace

std::unique_ptr<LayerOperator> make_fully_connected(const LayerSpec& layer,
                                                    const OperatorOptions& options,
                                                    OnednnContext& context) {
  return std::make_unique<FullyConnected>(layer, options, context);
}

}  // namespace poseidon
