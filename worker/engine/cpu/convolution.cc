// Convolution on oneDNN, in whatever layouts it prefers for these sizes.

#include <memory>

#include "worker/engine/cpu/onednn_operator.h"

namespace poseidon {
namespace {

using Dims = dnnl::memory::dims;

struct Geometry {
  Dims input, weight, bias, output, strides, pad;
};

Geometry geometry_of(const LayerSpec& layer, std::int64_t batch) {
  const Shape& weight = layer.parameters.front().shape;
  Geometry g;
  g.input = batch_dims(batch, layer.input_shape);
  g.output = batch_dims(batch, layer.output_shape);
  // Grouped weights are the same bytes with the outputs' dimension split in two.
  g.weight = weight;
  if (layer.groups > 1) {
    g.weight = {layer.groups, weight[0] / layer.groups, weight[1], weight[2], weight[3]};
  }
  if (layer.parameters.size() > 1) g.bias = {weight[0]};
  g.strides = {layer.stride_h, layer.stride_w};
  g.pad = {layer.pad_h, layer.pad_w};
  return g;
}

dnnl::convolution_forward::primitive_desc forward_desc(const Geometry& g,
                                                       const dnnl::engine& engine) {
  using dnnl::convolution_forward;
  const auto kind = dnnl::prop_kind::forward_training;
  const auto algorithm = dnnl::algorithm::convolution_direct;
  if (g.bias.empty()) {
    return {convolution_forward::desc(kind, algorithm, any_desc(g.input), any_desc(g.weight),
                                      any_desc(g.output), g.strides, g.pad, g.pad),
            engine};
  }
  return {
      convolution_forward::desc(kind, algorithm, any_desc(g.input), any_desc(g.weight),
                                plain_desc(g.bias), any_desc(g.output), g.strides, g.pad, g.pad),
      engine};
}

dnnl::convolution_backward_weights::primitive_desc weights_desc(
    const Geometry& g, const dnnl::engine& engine,
    const dnnl::convolution_forward::primitive_desc& forward) {
  using dnnl::convolution_backward_weights;
  const auto algorithm = dnnl::algorithm::convolution_direct;
  if (g.bias.empty()) {
    return {convolution_backward_weights::desc(algorithm, any_desc(g.input), any_desc(g.weight),
                                               any_desc(g.output), g.strides, g.pad, g.pad),
            engine, forward};
  }
  return {convolution_backward_weights::desc(algorithm, any_desc(g.input), any_desc(g.weight),
                                             plain_desc(g.bias), any_desc(g.output), g.strides,
                                             g.pad, g.pad),
          engine, forward};
}

class Convolution final : public OnednnOperator {
 public:
  Convolution(const LayerSpec& layer, const OperatorOptions& options, OnednnContext& context)
      : OnednnOperator(layer.name, context),
        weight_elements_(element_count(layer.parameters.front().shape)) {
    const Geometry g = geometry_of(layer, options.batch_size);
    has_bias_ = !g.bias.empty();
    if (has_bias_) bias_ = handle(context, plain_desc(g.bias));
    const auto forward = forward_desc(g, context.engine);
    forward_ = dnnl::convolution_forward(forward);
    input_ = Inlet(context, plain_desc(g.input), forward.src_desc());
    weight_ = Inlet(context, plain_desc(g.weight), forward.weights_desc());
    output_ = Outlet(context, plain_desc(g.output), forward.dst_desc());

    const auto weights = weights_desc(g, context.engine, forward);
    backward_weights_ = dnnl::convolution_backward_weights(weights);
    shares_input_ = weights.src_desc() == forward.src_desc();
    if (!shares_input_) {
      input_for_weights_ = Inlet(context, plain_desc(g.input), weights.src_desc());
    }
    output_gradient_ = Inlet(context, plain_desc(g.output), weights.diff_dst_desc());
    weight_gradient_ = Outlet(context, plain_desc(g.weight), weights.diff_weights_desc());
    if (has_bias_) bias_gradient_ = handle(context, plain_desc(g.bias));
    if (options.wants_input_gradient) build_backward_data(g, forward);
  }

 private:
  void build_backward_data(const Geometry& g,
                           const dnnl::convolution_forward::primitive_desc& forward) {
    const dnnl::convolution_backward_data::primitive_desc data(
        dnnl::convolution_backward_data::desc(dnnl::algorithm::convolution_direct,
                                              any_desc(g.input), any_desc(g.weight),
                                              any_desc(g.output), g.strides, g.pad, g.pad),
        context_.engine, forward);
    backward_data_ = dnnl::convolution_backward_data(data);
    weight_for_data_ = Inlet(context_, plain_desc(g.weight), data.weights_desc());
    input_gradient_ = Outlet(context_, plain_desc(g.input), data.diff_src_desc());
    shares_output_gradient_ = data.diff_dst_desc() == output_gradient_.wanted();
    if (!shares_output_gradient_) {
      output_gradient_for_data_ = Inlet(context_, plain_desc(g.output), data.diff_dst_desc());
    }
  }

  void run_forward(const ForwardArgs& args) override {
    std::unordered_map<int, dnnl::memory> tensors{
        {DNNL_ARG_SRC, input_.load(context_, args.inputs[0])},
        {DNNL_ARG_WEIGHTS, weight_.load(context_, args.parameters)},
        {DNNL_ARG_DST, output_.target(args.output)}};
    if (has_bias_) {
      bias_.set_data_handle(const_cast<float*>(args.parameters + weight_elements_));
      tensors.emplace(DNNL_ARG_BIAS, bias_);
    }
    forward_.execute(context_.stream, tensors);
    output_.deliver(context_);
  }

  void run_backward(const BackwardArgs& args) override {
    dnnl::memory& output_gradient = output_gradient_.load(context_, args.output_gradient);
    // Forward left the input in its layout; where the layouts agree it is not converted again.
    dnnl::memory& input =
        shares_input_ ? input_.loaded() : input_for_weights_.load(context_, args.forward.inputs[0]);
    std::unordered_map<int, dnnl::memory> tensors{
        {DNNL_ARG_SRC, input},
        {DNNL_ARG_DIFF_DST, output_gradient},
        {DNNL_ARG_DIFF_WEIGHTS, weight_gradient_.target(args.parameter_gradients)}};
    if (has_bias_) {
      bias_gradient_.set_data_handle(args.parameter_gradients + weight_elements_);
      tensors.emplace(DNNL_ARG_DIFF_BIAS, bias_gradient_);
    }
    backward_weights_.execute(context_.stream, tensors);
    weight_gradient_.deliver(context_);
    if (args.input_gradients[0] == nullptr) return;
    dnnl::memory& gradient_for_data =
        shares_output_gradient_ ? output_gradient
                                : output_gradient_for_data_.load(context_, args.output_gradient);
    backward_data_.execute(
        context_.stream,
        {{DNNL_ARG_DIFF_DST, gradient_for_data},
         {DNNL_ARG_WEIGHTS, weight_for_data_.load(context_, args.forward.parameters)},
         {DNNL_ARG_DIFF_SRC, input_gradient_.target(args.input_gradients[0])}});
    input_gradient_.deliver(context_);
  }

  const std::int64_t weight_elements_;
  bool has_bias_ = false;
  bool shares_input_ = false;
  bool shares_output_gradient_ = false;
  dnnl::convolution_forward forward_;
  dnnl::convolution_backward_weights backward_weights_;
  dnnl::convolution_backward_data backward_data_;
  Inlet input_, weight_, input_for_weights_, output_gradient_, weight_for_data_,
      output_gradient_for_data_;
  Outlet output_, weight_gradient_, input_gradient_;
  dnnl::memory bias_, bias_gradient_;
};

}  // namespace

std::unique_ptr<LayerOperator> make_convolution(const LayerSpec& layer,
                                                const OperatorOptions& options,
                                                OnednnContext& context) {
  return std::make_unique<Convolution>(layer, options, context);
}

}  // namespace poseidon
