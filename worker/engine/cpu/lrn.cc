// Local response normalisation across channels, on oneDNN.

#include <memory>

#include "worker/engine/cpu/onednn_operator.h"

namespace poseidon {
namespace {

class Lrn final : public OnednnOperator {
 public:
  Lrn(const LayerSpec& layer, const OperatorOptions& options, OnednnContext& context)
      : OnednnOperator(layer.name, context) {
    const auto desc = tensor_desc(options.batch_size, layer.input_shape, options.input_layout());
    input_ = handle(context, desc);
    output_ = handle(context, desc);
    output_gradient_ = handle(context, desc);
    input_gradient_ = handle(context, desc);
    const auto algorithm = dnnl::algorithm::lrn_across_channels;
    const auto alpha = static_cast<float>(layer.alpha);
    const auto beta = static_cast<float>(layer.beta);
    const auto k = static_cast<float>(layer.k);
    const dnnl::lrn_forward::primitive_desc forward(
        dnnl::lrn_forward::desc(dnnl::prop_kind::forward_training, algorithm, desc,
                                layer.local_size, alpha, beta, k),
        context.engine);
    forward_ = dnnl::lrn_forward(forward);
    forward_arguments_ = {{DNNL_ARG_SRC, input_}, {DNNL_ARG_DST, output_}};
    backward_arguments_ = {{DNNL_ARG_SRC, input_},
                           {DNNL_ARG_DIFF_DST, output_gradient_},
                           {DNNL_ARG_DIFF_SRC, input_gradient_}};
    if (forward.workspace_desc().get_size() > 0) {
      const dnnl::memory workspace(forward.workspace_desc(), context.engine);
      forward_arguments_.emplace(DNNL_ARG_WORKSPACE, workspace);
      backward_arguments_.emplace(DNNL_ARG_WORKSPACE, workspace);
    }
    backward_ = dnnl::lrn_backward(
        {dnnl::lrn_backward::desc(algorithm, desc, desc, layer.local_size, alpha, beta, k),
         context.engine, forward});
  }

 private:
  absl::Status run_forward(const ForwardArgs& args) override {
    input_.set_data_handle(const_cast<float*>(args.inputs[0]));
    output_.set_data_handle(args.output);
    forward_.execute(context_.stream, forward_arguments_);
    return absl::OkStatus();
  }

  absl::Status run_backward(const BackwardArgs& args) override {
    if (args.input_gradients[0] == nullptr) return absl::OkStatus();
    input_.set_data_handle(const_cast<float*>(args.forward.inputs[0]));
    output_gradient_.set_data_handle(const_cast<float*>(args.output_gradient));
    input_gradient_.set_data_handle(args.input_gradients[0]);
    backward_.execute(context_.stream, backward_arguments_);
    return absl::OkStatus();
  }

  dnnl::lrn_forward forward_;
  dnnl::lrn_backward backward_;
  dnnl::memory input_, output_, output_gradient_, input_gradient_;
  Arguments forward_arguments_, backward_arguments_;
};

}  // namespace

std::unique_ptr<LayerOperator> make_lrn(const LayerSpec& layer, const OperatorOptions& options,
                                        OnednnContext& context) {
  return std::make_unique<Lrn>(layer, options, context);
}

}  // namespace poseidon
