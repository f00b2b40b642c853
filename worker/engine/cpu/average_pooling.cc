// Average pooling on oneDNN: the mean of those elements of each window that lie inside the image,
// so that neither padding nor the overhang of ceil_mode counts.

#include <algorithm>
#include <memory>

#include "worker/engine/cpu/onednn_operator.h"

namespace poseidon {
namespace {

class AveragePooling final : public OnednnOperator {
 public:
  AveragePooling(const LayerSpec& layer, const OperatorOptions& options, OnednnContext& context)
      : OnednnOperator(layer.name, context) {
    const auto input = plain_desc(batch_dims(options.batch_size, layer.input_shape));
    const auto output = plain_desc(batch_dims(options.batch_size, layer.output_shape));
    input_ = handle(context, input);
    output_ = handle(context, output);
    forward_arguments_ = {{DNNL_ARG_SRC, input_}, {DNNL_ARG_DST, output_}};
    backward_arguments_ = {{DNNL_ARG_DIFF_DST, output_}, {DNNL_ARG_DIFF_SRC, input_}};
    const auto algorithm = dnnl::algorithm::pooling_avg_exclude_padding;
    const dnnl::memory::dims stride{layer.stride_h, layer.stride_w};
    const dnnl::memory::dims kernel{layer.kernel_h, layer.kernel_w};
    const dnnl::memory::dims left{layer.pad_h, layer.pad_w};
    // The padding behind is what the windows need: more than in front where ceil_mode hangs over,
    // less (even below zero) where the last pixels are in no window.
    const auto behind = [&](std::size_t dimension) {
      return (layer.output_shape[1 + dimension] - 1) * stride[dimension] + kernel[dimension] -
             layer.input_shape[1 + dimension] - left[dimension];
    };
    const dnnl::memory::dims right{behind(0), behind(1)};
    const dnnl::pooling_forward::primitive_desc forward(
        dnnl::pooling_forward::desc(dnnl::prop_kind::forward_training, algorithm, input, output,
                                    stride, kernel, left, right),
        context.engine);
    forward_ = dnnl::pooling_forward(forward);
    backward_ = dnnl::pooling_backward(
        {dnnl::pooling_backward::desc(algorithm, input, output, stride, kernel, left, right),
         context.engine, forward});
  }

 private:
  void run_forward(const ForwardArgs& args) override {
    input_.set_data_handle(const_cast<float*>(args.inputs[0]));
    output_.set_data_handle(args.output);
    forward_.execute(context_.stream, forward_arguments_);
  }

  void run_backward(const BackwardArgs& args) override {
    if (args.input_gradients[0] == nullptr) return;
    output_.set_data_handle(const_cast<float*>(args.output_gradient));
    input_.set_data_handle(args.input_gradients[0]);
    backward_.execute(context_.stream, backward_arguments_);
  }

  dnnl::pooling_forward forward_;
  dnnl::pooling_backward backward_;
  dnnl::memory input_, output_;  // of the values forward, of the gradients backward
  Arguments forward_arguments_, backward_arguments_;
};

}  // namespace

std::unique_ptr<LayerOperator> make_average_pooling(const LayerSpec& layer,
                                                    const OperatorOptions& options,
                                                    OnednnContext& context) {
  return std::make_unique<AveragePooling>(layer, options, context);
}

}  // namespace poseidon
