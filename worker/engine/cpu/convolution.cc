// Convolution on oneDNN, in whatever layouts it prefers for these sizes: those of Layout::kDevice
// mostly, so that images are not converted. Weights are: they change in every iteration.

#include <memory>

#include "worker/engine/cpu/onednn_operator.h"

namespace poseidon {
namespace {

using Dims = dnnl::memory::dims;

struct Geometry {
  Dims input, weight, bias, output, strides, pad;
  dnnl::memory::desc given_input, given_output;  // as they are between layers
};

Geometry geometry_of(const LayerSpec& layer, const OperatorOptions& options) {
  const Shape& weight = layer.parameters.front().shape;
  Geometry g;
  g.input = batch_dims(options.batch_size, layer.input_shape);
  g.output = batch_dims(options.batch_size, layer.output_shape);
  g.given_input = tensor_desc(options.batch_size, layer.input_shape, options.input_layout());
  g.given_output = tensor_desc(options.batch_size, layer.output_shape, options.output_layout);
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
        weight_elements_(element_count(layer.parameters.front().shape)),
        has_bias_(layer.parameters.size() > 1) {
    const Geometry g = geometry_of(layer, options);
    const auto forward = forward_desc(g, context.engine);
    ScratchSlices slices(context);
    build_forward(g, forward, slices);
    build_backward_weights(g, forward, slices);
    if (options.wants_input_gradient) build_backward_data(g, forward, slices);
  }

 private:
  using ForwardDesc = dnnl::convolution_forward::primitive_desc;

  void build_forward(const Geometry& g, const ForwardDesc& forward, ScratchSlices& slices) {
    forward_ = dnnl::convolution_forward(forward);
    input_ = Inlet(slices, g.given_input, forward.src_desc());
    weight_ = Inlet(slices, plain_desc(g.weight), forward.weights_desc());
    output_ = Outlet(slices, g.given_output, forward.dst_desc());
    forward_arguments_ = {{DNNL_ARG_SRC, input_.memory()},
                          {DNNL_ARG_WEIGHTS, weight_.memory()},
                          {DNNL_ARG_DST, output_.memory()}};
    if (!has_bias_) return;
    bias_ = handle(context_, plain_desc(g.bias));
    forward_arguments_.emplace(DNNL_ARG_BIAS, bias_);
  }

  void build_backward_weights(const Geometry& g, const ForwardDesc& forward,
                              ScratchSlices& slices) {
    const auto weights = weights_desc(g, context_.engine, forward);
    backward_weights_ = dnnl::convolution_backward_weights(weights);
    input_for_weights_ = Inlet(slices, g.given_input, weights.src_desc());
    output_gradient_ = Inlet(slices, g.given_output, weights.diff_dst_desc());
    weight_gradient_ = Outlet(slices, plain_desc(g.weight), weights.diff_weights_desc());
    weights_arguments_ = {{DNNL_ARG_SRC, input_for_weights_.memory()},
                          {DNNL_ARG_DIFF_DST, output_gradient_.memory()},
                          {DNNL_ARG_DIFF_WEIGHTS, weight_gradient_.memory()}};
    if (!has_bias_) return;
    bias_gradient_ = handle(context_, plain_desc(g.bias));
    weights_arguments_.emplace(DNNL_ARG_DIFF_BIAS, bias_gradient_);
  }

  void build_backward_data(const Geometry& g, const ForwardDesc& forward, ScratchSlices& slices) {
    const dnnl::convolution_backward_data::primitive_desc data(
        dnnl::convolution_backward_data::desc(dnnl::algorithm::convolution_direct,
                                              any_desc(g.input), any_desc(g.weight),
                                              any_desc(g.output), g.strides, g.pad, g.pad),
        context_.engine, forward);
    backward_data_ = dnnl::convolution_backward_data(data);
    weight_for_data_ = Inlet(slices, plain_desc(g.weight), data.weights_desc());
    input_gradient_ = Outlet(slices, g.given_input, data.diff_src_desc());
    shares_output_gradient_ = data.diff_dst_desc() == output_gradient_.memory().get_desc();
    if (!shares_output_gradient_) {
      output_gradient_for_data_ = Inlet(slices, g.given_output, data.diff_dst_desc());
    }
    data_arguments_ = {
        {DNNL_ARG_DIFF_DST,
         shares_output_gradient_ ? output_gradient_.memory() : output_gradient_for_data_.memory()},
        {DNNL_ARG_WEIGHTS, weight_for_data_.memory()},
        {DNNL_ARG_DIFF_SRC, input_gradient_.memory()}};
  }

  absl::Status run_forward(const ForwardArgs& args) override {
    input_.load(context_, args.inputs[0]);
    weight_.load(context_, args.parameters);
    if (has_bias_) bias_.set_data_handle(const_cast<float*>(args.parameters + weight_elements_));
    output_.aim(context_, args.output);
    forward_.execute(context_.stream, forward_arguments_);
    output_.deliver(context_);
    return absl::OkStatus();
  }

  absl::Status run_backward(const BackwardArgs& args) override {
    output_gradient_.load(context_, args.output_gradient);
    input_for_weights_.load(context_, args.forward.inputs[0]);
    weight_gradient_.aim(context_, args.parameter_gradients);
    if (has_bias_) bias_gradient_.set_data_handle(args.parameter_gradients + weight_elements_);
    backward_weights_.execute(context_.stream, weights_arguments_);
    weight_gradient_.deliver(context_);

    if (args.input_gradients[0] == nullptr) return absl::OkStatus();
    if (!shares_output_gradient_) output_gradient_for_data_.load(context_, args.output_gradient);
    weight_for_data_.load(context_, args.forward.parameters);
    input_gradient_.aim(context_, args.input_gradients[0]);
    backward_data_.execute(context_.stream, data_arguments_);
    input_gradient_.deliver(context_);
    return absl::OkStatus();
  }

  const std::int64_t weight_elements_;
  const bool has_bias_;
  bool shares_output_gradient_ = false;
  dnnl::convolution_forward forward_;
  dnnl::convolution_backward_weights backward_weights_;
  dnnl::convolution_backward_data backward_data_;
  Inlet input_, weight_, input_for_weights_, output_gradient_, weight_for_data_,
      output_gradient_for_data_;
  Outlet output_, weight_gradient_, input_gradient_;
  dnnl::memory bias_, bias_gradient_;
  Arguments forward_arguments_, weights_arguments_, data_arguments_;
};

}  // namespace

std::unique_ptr<LayerOperator> make_convolution(const LayerSpec& layer,
                                                const OperatorOptions& options,
                                                OnednnContext& context) {
  return std::make_unique<Convolution>(layer, options, context);
}

}  // namespace poseidon
