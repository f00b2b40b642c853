#include "worker/engine/layout_adapter.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "common/status_macros.h"

namespace poseidon {
namespace {

class LayoutAdapter final : public LayerOperator {
 public:
  explicit LayoutAdapter(std::unique_ptr<LayerOperator> plain) : plain_(std::move(plain)) {}

  absl::Status open(const LayerSpec& layer, const OperatorOptions& options,
                    const MakePlainTwin& make_twin) {
    const auto twin = [&](const Shape& shape, Layout layout, bool is_wanted,
                          std::unique_ptr<PlainTwin>& made) -> absl::Status {
      if (layout == Layout::kPlain || !is_wanted) return absl::OkStatus();
      POSEIDON_ASSIGN_OR_RETURN(made, make_twin(options.batch_size, shape, layout));
      return absl::OkStatus();
    };
    for (std::size_t i = 0; i < layer.inputs.size(); ++i) {
      Shape shape = layer.input_shape;
      if (!layer.concat_channels.empty()) shape[0] = layer.concat_channels[i];
      const Layout layout = options.input_layout(i);
      POSEIDON_RETURN_IF_ERROR(twin(shape, layout, true, inputs_.emplace_back()));
      POSEIDON_RETURN_IF_ERROR(
          twin(shape, layout, options.wants_input_gradient, input_gradients_.emplace_back()));
    }
    plain_inputs_.resize(layer.inputs.size());
    plain_input_gradients_.resize(layer.inputs.size());
    POSEIDON_RETURN_IF_ERROR(twin(layer.output_shape, options.output_layout, true, output_));
    return twin(layer.output_shape, options.output_layout, true, output_gradient_);
  }

  absl::Status forward(const ForwardArgs& args) override {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      plain_inputs_[i] = args.inputs[i];
      if (inputs_[i] == nullptr) continue;
      POSEIDON_RETURN_IF_ERROR(inputs_[i]->take(args.inputs[i]));
      plain_inputs_[i] = inputs_[i]->values();
    }
    plain_args_ = args;
    plain_args_.inputs = plain_inputs_;
    if (output_ != nullptr) plain_args_.output = output_->values();
    POSEIDON_RETURN_IF_ERROR(plain_->forward(plain_args_));
    return output_ != nullptr ? output_->give(args.output) : absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    BackwardArgs plain = args;
    plain.forward = plain_args_;
    if (output_gradient_ != nullptr) {
      POSEIDON_RETURN_IF_ERROR(output_gradient_->take(args.output_gradient));
      plain.output_gradient = output_gradient_->values();
    }
    for (std::size_t i = 0; i < input_gradients_.size(); ++i) {
      float* const wanted = args.input_gradients[i];
      plain_input_gradients_[i] = wanted != nullptr && input_gradients_[i] != nullptr
                                      ? input_gradients_[i]->values()
                                      : wanted;
    }
    plain.input_gradients = plain_input_gradients_;
    POSEIDON_RETURN_IF_ERROR(plain_->backward(plain));
    for (std::size_t i = 0; i < input_gradients_.size(); ++i) {
      float* const wanted = args.input_gradients[i];
      if (wanted == nullptr || input_gradients_[i] == nullptr) continue;
      POSEIDON_RETURN_IF_ERROR(input_gradients_[i]->give(wanted));
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<LayerOperator> plain_;
  std::vector<std::unique_ptr<PlainTwin>> inputs_, input_gradients_;  // null: plain already
  std::unique_ptr<PlainTwin> output_, output_gradient_;
  std::vector<const float*> plain_inputs_;
  std::vector<float*> plain_input_gradients_;
  ForwardArgs plain_args_;  // of the last forward; its inputs stay converted for backward
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperator>> adapt_layouts(std::unique_ptr<LayerOperator> plain,
                                                             const LayerSpec& layer,
                                                             const OperatorOptions& options,
                                                             const MakePlainTwin& make_twin) {
  auto adapter = std::make_unique<LayoutAdapter>(std::move(plain));
  POSEIDON_RETURN_IF_ERROR(adapter->open(layer, options, make_twin));
  return adapter;
}

}  // namespace poseidon
