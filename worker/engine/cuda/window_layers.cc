// Pooling and normalisation across channels on a GPU. Why not cuDNN's: its max pooling swallows
// NaN or does not say which of equal elements it chose, and neither of its averages leaves the
// overhang of ceil_mode out.

#include <memory>
#include <utility>

#include "common/base/check.h"
#include "worker/engine/cuda/cuda_operators.h"
#include "worker/engine/cuda/cuda_status.h"
#include "worker/engine/cuda/kernels/cuda_kernels.h"

namespace poseidon {
namespace {

class Pooling final : public LayerOperator {
 public:
  Pooling(const LayerSpec& layer, const cuda::PoolWindow& window, DeviceMemory chosen,
          CudaContext& context)
      : takes_largest_(layer.pool == LayerSpec::Pool::kMax),
        window_(window),
        context_(context),
        chosen_(std::move(chosen)) {}

  absl::Status forward(const ForwardArgs& args) override {
    if (takes_largest_) {
      cuda::max_pool(context_.compute(), window_, args.inputs[0], args.output, chosen_.get());
    } else {
      cuda::average_pool(context_.compute(), window_, args.inputs[0], args.output);
    }
    return launch_status("pooling");
  }

  absl::Status backward(const BackwardArgs& args) override {
    float* const out = args.input_gradients[0];
    if (out == nullptr) return absl::OkStatus();
    if (takes_largest_) {
      cuda::max_pool_gradient(context_.compute(), window_, args.output_gradient, chosen_.get(),
                              out);
    } else {
      cuda::average_pool_gradient(context_.compute(), window_, args.output_gradient, out);
    }
    return launch_status("pooling gradient");
  }

 private:
  const bool takes_largest_;
  const cuda::PoolWindow window_;
  CudaContext& context_;
  const DeviceMemory chosen_;  // per output, of the last forward; max pooling alone
};

class Lrn final : public LayerOperator {
 public:
  Lrn(const cuda::LrnSizes& sizes, DeviceMemory scale, CudaContext& context)
      : sizes_(sizes), context_(context), scale_(std::move(scale)) {}

  absl::Status forward(const ForwardArgs& args) override {
    cuda::lrn(context_.compute(), sizes_, args.inputs[0], scale(), args.output);
    return launch_status("lrn");
  }

  absl::Status backward(const BackwardArgs& args) override {
    if (args.input_gradients[0] == nullptr) return absl::OkStatus();
    cuda::lrn_gradient(context_.compute(), sizes_, args.forward.inputs[0], scale(),
                       args.output_gradient, args.input_gradients[0]);
    return launch_status("lrn gradient");
  }

 private:
  float* scale() const { return static_cast<float*>(scale_.get()); }

  const cuda::LrnSizes sizes_;
  CudaContext& context_;
  const DeviceMemory scale_;  // per element, of the last forward
};

}  // namespace

MadeOperator make_cuda_pooling(const LayerSpec& layer, const OperatorOptions& options,
                               CudaContext& context) {
  const bool is_last = has_channels_last(options.output_layout);
  const cuda::PoolWindow window = {.layout = options.output_layout,
                                   .planes = options.batch_size * layer.input_shape[0],
                                   .side_by_side = is_last ? layer.input_shape[0] : 1,
                                   .height = layer.input_shape[1],
                                   .width = layer.input_shape[2],
                                   .out_height = layer.output_shape[1],
                                   .out_width = layer.output_shape[2],
                                   .kernel_h = layer.kernel_h,
                                   .kernel_w = layer.kernel_w,
                                   .stride_h = layer.stride_h,
                                   .stride_w = layer.stride_w,
                                   .pad_h = layer.pad_h,
                                   .pad_w = layer.pad_w,
                                   .count_padding = layer.count_padding};
  DeviceMemory chosen{nullptr, nullptr};
  if (layer.pool == LayerSpec::Pool::kMax) {
    const std::int64_t outputs = options.batch_size * element_count(layer.output_shape);
    POSEIDON_ASSIGN_OR_RETURN(chosen, context.allocate(outputs * cuda::choice_bytes(window)));
  }
  return std::make_unique<Pooling>(layer, window, std::move(chosen), context);
}

MadeOperator make_cuda_lrn(const LayerSpec& layer, const OperatorOptions& options,
                           CudaContext& context) {
  const std::int64_t channels = layer.input_shape[0];
  const std::int64_t plane = element_count(layer.input_shape) / channels;
  const cuda::LrnSizes sizes = {
      .layout = options.output_layout,
      .samples = options.batch_size,
      .channels = channels,
      .plane = plane,
      .stride = has_channels_last(options.output_layout) ? 1 : plane,
      .half = layer.local_size / 2,
      .slope = static_cast<float>(layer.alpha / static_cast<double>(layer.local_size)),
      .beta = static_cast<float>(layer.beta),
      .k = static_cast<float>(layer.k)};
  POSEIDON_ASSIGN_OR_RETURN(DeviceMemory scale,
                            context.allocate(options.batch_size * element_count(layer.input_shape) *
                                             static_cast<std::int64_t>(sizeof(float))));
  return std::make_unique<Lrn>(sizes, std::move(scale), context);
}

}  // namespace poseidon
