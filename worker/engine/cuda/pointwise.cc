// ReLU, sum, dropout and concatenation on a GPU. The first three work in place
// (tensor_lifetimes.h): a pointer they write to may be the one they read from.

#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/random.h"
#include "worker/engine/cuda/cuda_operators.h"
#include "worker/engine/cuda/cuda_status.h"
#include "worker/engine/cuda/kernels/cuda_kernels.h"

namespace poseidon {
namespace {

std::int64_t batch_elements(const LayerSpec& layer, const OperatorOptions& options) {
  return options.batch_size * element_count(layer.output_shape);
}

absl::Status copy(const CudaContext& context, const float* from, float* to, std::int64_t bytes) {
  if (from == to) return absl::OkStatus();
  POSEIDON_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                                context.compute()));
  return absl::OkStatus();
}

class Relu final : public LayerOperator {
 public:
  Relu(std::int64_t elements, Layout layout, CudaContext& context)
      : elements_(elements), layout_(layout), context_(context) {}

  absl::Status forward(const ForwardArgs& args) override {
    cuda::relu(context_.compute(), layout_, args.inputs[0], args.output, elements_);
    return launch_status("relu");
  }

  absl::Status backward(const BackwardArgs& args) override {
    if (args.input_gradients[0] == nullptr) return absl::OkStatus();
    cuda::relu_gradient(context_.compute(), layout_, args.forward.output, args.output_gradient,
                        args.input_gradients[0], elements_);
    return launch_status("relu_gradient");
  }

 private:
  const std::int64_t elements_;
  const Layout layout_;
  CudaContext& context_;
};

class Add final : public LayerOperator {
 public:
  Add(std::int64_t elements, const OperatorOptions& options, CudaContext& context)
      : elements_(elements),
        layout_(options.output_layout),
        relu_(options.relu == ReluShare::kForward),
        context_(context) {}

  absl::Status forward(const ForwardArgs& args) override {
    const float* sum = args.inputs[0];
    for (std::size_t i = 1; i < args.inputs.size(); ++i) {
      const auto add = relu_ && i + 1 == args.inputs.size() ? cuda::sum_relu : cuda::sum;
      add(context_.compute(), layout_, sum, args.inputs[i], args.output, elements_);
      sum = args.output;
    }
    return launch_status("sum");
  }

  absl::Status backward(const BackwardArgs& args) override {
    for (float* const out : args.input_gradients) {
      if (out == nullptr) continue;
      POSEIDON_RETURN_IF_ERROR(
          copy(context_, args.output_gradient, out, elements_ * bytes_per_element(layout_)));
    }
    return absl::OkStatus();
  }

 private:
  const std::int64_t elements_;
  const Layout layout_;
  const bool relu_;  ///< of the sum
  CudaContext& context_;
};

class Dropout final : public LayerOperator {
 public:
  Dropout(const LayerSpec& layer, const OperatorOptions& options, CudaContext& context)
      : layer_seed_(mix_seed(options.seed, fnv1a_64(layer.name))),
        samples_(options.batch_size),
        elements_(element_count(layer.output_shape)),
        ratio_(layer.dropout_ratio),
        context_(context) {}

  absl::Status forward(const ForwardArgs& args) override {
    if (args.phase == Phase::kTest) {
      return copy(context_, args.inputs[0], args.output,
                  samples_ * elements_ * bytes_per_element(Layout::kPlain));
    }
    return mask(args.first_sample, args.inputs[0], args.output);
  }

  // The mask is drawn again rather than kept: it is cheap, and a batch of masks is not.
  absl::Status backward(const BackwardArgs& args) override {
    if (args.input_gradients[0] == nullptr) return absl::OkStatus();
    return mask(args.forward.first_sample, args.output_gradient, args.input_gradients[0]);
  }

 private:
  absl::Status mask(std::uint64_t first_sample, const float* in, float* out) const {
    cuda::dropout(context_.compute(), layer_seed_, first_sample, ratio_, samples_, elements_, in,
                  out);
    return launch_status("dropout");
  }

  const std::uint64_t layer_seed_;  // dropout_seed of dropout_mask.h, without the sample
  const std::int64_t samples_;
  const std::int64_t elements_;  // of one sample
  const double ratio_;
  CudaContext& context_;
};

// Along the channels: rows, of which every input has its own columns. A row is a sample, or one
// pixel where channels are last.
class Concat final : public LayerOperator {
 public:
  Concat(const LayerSpec& layer, const OperatorOptions& options, CudaContext& context)
      : context_(context) {
    const std::int64_t plane = element_count(layer.output_shape) / layer.output_shape.front();
    const Layout layout = options.output_layout;
    const bool is_last = has_channels_last(layout);
    const std::int64_t of_a_channel = (is_last ? 1 : plane) * bytes_per_element(layout);
    rows_ = static_cast<std::size_t>(options.batch_size * (is_last ? plane : 1));
    for (const std::int64_t channels : layer.concat_channels) {
      const auto bytes = static_cast<std::size_t>(channels * of_a_channel);
      parts_.push_back({row_bytes_, bytes});
      row_bytes_ += bytes;
    }
  }

  absl::Status forward(const ForwardArgs& args) override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      POSEIDON_CUDA(cudaMemcpy2DAsync(reinterpret_cast<std::byte*>(args.output) + parts_[i].begin,
                                      row_bytes_, args.inputs[i], parts_[i].size, parts_[i].size,
                                      rows_, cudaMemcpyDeviceToDevice, context_.compute()));
    }
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (args.input_gradients[i] == nullptr) continue;
      const auto* const from = reinterpret_cast<const std::byte*>(args.output_gradient);
      POSEIDON_CUDA(cudaMemcpy2DAsync(args.input_gradients[i], parts_[i].size,
                                      from + parts_[i].begin, row_bytes_, parts_[i].size, rows_,
                                      cudaMemcpyDeviceToDevice, context_.compute()));
    }
    return absl::OkStatus();
  }

 private:
  // Of one row, in bytes: where an input begins in the output, and how long it is.
  struct Part {
    std::size_t begin, size;
  };

  std::size_t rows_ = 0, row_bytes_ = 0;
  std::vector<Part> parts_;
  CudaContext& context_;
};

}  // namespace

MadeOperator make_cuda_relu(const LayerSpec& layer, const OperatorOptions& options,
                            CudaContext& context) {
  return std::make_unique<Relu>(batch_elements(layer, options), options.output_layout, context);
}

MadeOperator make_cuda_add(const LayerSpec& layer, const OperatorOptions& options,
                           CudaContext& context) {
  return std::make_unique<Add>(batch_elements(layer, options), options, context);
}

MadeOperator make_cuda_dropout(const LayerSpec& layer, const OperatorOptions& options,
                               CudaContext& context) {
  return std::make_unique<Dropout>(layer, options, context);
}

MadeOperator make_cuda_concat(const LayerSpec& layer, const OperatorOptions& options,
                              CudaContext& context) {
  return std::make_unique<Concat>(layer, options, context);
}

}  // namespace poseidon
