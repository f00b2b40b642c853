#include "worker/engine/cpu/layout_adapter.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "common/status_macros.h"

namespace poseidon {
namespace {

// A tensor in both layouts, and the way from one to the other.
class Converted {
 public:
  Converted(const OnednnContext& context, std::int64_t batch, const Shape& shape)
      : plain_(handle(context, tensor_desc(batch, shape, Layout::kPlain))),
        device_(handle(context, tensor_desc(batch, shape, Layout::kDevice))),
        to_plain_(device_, plain_),
        to_device_(plain_, device_),
        buffer_(static_cast<std::size_t>(batch * element_count(shape))) {}

  /// The tensor at `data`, plain; until the next call.
  const float* plain(OnednnContext& context, const float* data) {
    device_.set_data_handle(const_cast<float*>(data));
    plain_.set_data_handle(buffer_.data());
    to_plain_.execute(context.stream, device_, plain_);
    return buffer_.data();
  }
  float* buffer() { return buffer_.data(); }
  /// From buffer() to `data`.
  void deliver(OnednnContext& context, float* data) {
    device_.set_data_handle(data);
    plain_.set_data_handle(buffer_.data());
    to_device_.execute(context.stream, plain_, device_);
  }

 private:
  dnnl::memory plain_, device_;
  dnnl::reorder to_plain_, to_device_;
  std::vector<float> buffer_;
};

class LayoutAdapter final : public OnednnOperator {
 public:
  LayoutAdapter(std::unique_ptr<LayerOperator> plain, const LayerSpec& layer,
                const OperatorOptions& options, OnednnContext& context)
      : OnednnOperator(layer.name, context), plain_(std::move(plain)) {
    const std::int64_t batch = options.batch_size;
    for (std::size_t i = 0; i < layer.inputs.size(); ++i) {
      Shape shape = layer.input_shape;
      if (!layer.concat_channels.empty()) shape[0] = layer.concat_channels[i];
      const bool converts = options.input_layout(i) == Layout::kDevice;
      inputs_.push_back(converts ? std::make_unique<Converted>(context, batch, shape) : nullptr);
      input_gradients_.push_back(converts && options.wants_input_gradient
                                     ? std::make_unique<Converted>(context, batch, shape)
                                     : nullptr);
    }
    plain_inputs_.resize(layer.inputs.size());
    plain_input_gradients_.resize(layer.inputs.size());
    if (options.output_layout == Layout::kDevice) {
      output_ = std::make_unique<Converted>(context, batch, layer.output_shape);
      output_gradient_ = std::make_unique<Converted>(context, batch, layer.output_shape);
    }
  }

 private:
  absl::Status run_forward(const ForwardArgs& args) override {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      plain_inputs_[i] = inputs_[i] ? inputs_[i]->plain(context_, args.inputs[i]) : args.inputs[i];
    }
    plain_args_ = args;
    plain_args_.inputs = plain_inputs_;
    if (output_) plain_args_.output = output_->buffer();
    POSEIDON_RETURN_IF_ERROR(plain_->forward(plain_args_));
    if (output_) output_->deliver(context_, args.output);
    return absl::OkStatus();
  }

  absl::Status run_backward(const BackwardArgs& args) override {
    BackwardArgs plain = args;
    plain.forward = plain_args_;
    if (output_gradient_) {
      plain.output_gradient = output_gradient_->plain(context_, args.output_gradient);
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      float* const wanted = args.input_gradients[i];
      plain_input_gradients_[i] =
          wanted != nullptr && input_gradients_[i] ? input_gradients_[i]->buffer() : wanted;
    }
    plain.input_gradients = plain_input_gradients_;
    POSEIDON_RETURN_IF_ERROR(plain_->backward(plain));
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      float* const wanted = args.input_gradients[i];
      if (wanted != nullptr && input_gradients_[i]) input_gradients_[i]->deliver(context_, wanted);
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<LayerOperator> plain_;
  std::vector<std::unique_ptr<Converted>> inputs_, input_gradients_;  // null: plain already
  std::unique_ptr<Converted> output_, output_gradient_;
  std::vector<const float*> plain_inputs_;
  std::vector<float*> plain_input_gradients_;
  ForwardArgs plain_args_;  // of the last forward; its inputs stay converted for backward
};

}  // namespace

std::unique_ptr<LayerOperator> adapt_layouts(std::unique_ptr<LayerOperator> plain,
                                             const LayerSpec& layer, const OperatorOptions& options,
                                             OnednnContext& context) {
  return std::make_unique<LayoutAdapter>(std::move(plain), layer, options, context);
}

}  // namespace poseidon
