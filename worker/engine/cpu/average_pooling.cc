// Average pooling on oneDNN: the mean of those elements of each window that lie inside the image,
// or with count_padding inside the padded image. The overhang of ceil_mode never counts; oneDNN
// would count it as padding, so those windows are corrected here.

#include <algorithm>
#include <memory>
#include <vector>

#include "worker/engine/cpu/onednn_operator.h"

namespace poseidon {
namespace {

class AveragePooling final : public OnednnOperator {
 public:
  AveragePooling(const LayerSpec& layer, const OperatorOptions& options, OnednnContext& context)
      : OnednnOperator(layer.name, context) {
    const auto input = tensor_desc(options.batch_size, layer.input_shape, options.input_layout());
    const auto output = tensor_desc(options.batch_size, layer.output_shape, options.output_layout);
    lanes_ = options.output_layout == Layout::kDevice ? static_cast<std::size_t>(channel_block())
                                                      : std::size_t{1};
    input_ = handle(context, input);
    output_ = handle(context, output);
    forward_arguments_ = {{DNNL_ARG_SRC, input_}, {DNNL_ARG_DST, output_}};
    backward_arguments_ = {{DNNL_ARG_DIFF_DST, output_}, {DNNL_ARG_DIFF_SRC, input_}};
    const auto algorithm = layer.count_padding ? dnnl::algorithm::pooling_avg_include_padding
                                               : dnnl::algorithm::pooling_avg_exclude_padding;
    if (layer.count_padding) find_overhang(layer, options.batch_size);
    const dnnl::memory::dims stride{layer.stride_h, layer.stride_w};
    const dnnl::memory::dims kernel{layer.kernel_h, layer.kernel_w};
    const dnnl::memory::dims left{layer.pad_h, layer.pad_w};
    // The padding at the end is as large as the windows need: larger than in front when ceil_mode
    // hangs over, smaller (even negative) when the last pixels are in no window.
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
  absl::Status run_forward(const ForwardArgs& args) override {
    input_.set_data_handle(const_cast<float*>(args.inputs[0]));
    output_.set_data_handle(args.output);
    forward_.execute(context_.stream, forward_arguments_);
    if (!correction_.empty()) correct(args.output, args.output);
    return absl::OkStatus();
  }

  absl::Status run_backward(const BackwardArgs& args) override {
    if (args.input_gradients[0] == nullptr) return absl::OkStatus();
    if (!correction_.empty()) correct(args.output_gradient, corrected_.data());
    output_.set_data_handle(correction_.empty() ? const_cast<float*>(args.output_gradient)
                                                : corrected_.data());
    input_.set_data_handle(args.input_gradients[0]);
    backward_.execute(context_.stream, backward_arguments_);
    return absl::OkStatus();
  }

  // For a window that hangs over, oneDNN divides by more elements than the padded image has.
  void find_overhang(const LayerSpec& layer, std::int64_t batch) {
    const auto share = [](std::int64_t begin, std::int64_t kernel, std::int64_t size) {
      return static_cast<double>(kernel) / static_cast<double>(std::min(kernel, size - begin));
    };
    bool hangs_over = false;
    for (std::int64_t y = 0; y < layer.output_shape[1]; ++y) {
      const double rows =
          share(y * layer.stride_h, layer.kernel_h, layer.input_shape[1] + 2 * layer.pad_h);
      for (std::int64_t x = 0; x < layer.output_shape[2]; ++x) {
        const double columns =
            share(x * layer.stride_w, layer.kernel_w, layer.input_shape[2] + 2 * layer.pad_w);
        correction_.push_back(static_cast<float>(rows * columns));
        hangs_over |= rows * columns > 1.0;
      }
    }
    if (hangs_over) {
      corrected_.resize(static_cast<std::size_t>(batch * element_count(layer.output_shape)));
    } else {
      correction_.clear();
    }
  }

  void correct(const float* from, float* to) const {
    const std::size_t plane_elements = correction_.size() * lanes_;
    for (std::size_t plane = 0; plane < corrected_.size(); plane += plane_elements) {
      for (std::size_t i = 0; i < plane_elements; ++i) {
        to[plane + i] = from[plane + i] * correction_[i / lanes_];
      }
    }
  }

  dnnl::pooling_forward forward_;
  dnnl::pooling_backward backward_;
  dnnl::memory input_, output_;  // of the values forward, of the gradients backward
  Arguments forward_arguments_, backward_arguments_;
  std::size_t lanes_ = 1;          // channels side by side
  std::vector<float> correction_;  // per output of a plane; empty where no window hangs over
  std::vector<float> corrected_;   // the output's gradient
};

}  // namespace

std::unique_ptr<LayerOperator> make_average_pooling(const LayerSpec& layer,
                                                    const OperatorOptions& options,
                                                    OnednnContext& context) {
  return std::make_unique<AveragePooling>(layer, options, context);
}

}  // namespace poseidon
