#include "worker/engine/executor/layout_adapter.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/engine/executor/tensor_lifetimes.h"

namespace poseidon {
namespace {

class LayoutAdapter final : public LayerOperator {
 public:
  LayoutAdapter(std::unique_ptr<LayerOperator> plain, const LayerSpec& layer)
      : layer_(layer.name), plain_(std::move(plain)), needs_(backward_needs(layer.type)) {}

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
    ForwardArgs plain = args;
    POSEIDON_RETURN_IF_ERROR(bring_inputs(args, true, plain));
    if (output_ != nullptr) plain.output = output_->values();
    POSEIDON_RETURN_IF_ERROR(plain_->forward(plain));
    return output_ != nullptr ? named(output_->give(args.output)) : absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    BackwardArgs plain = args;
    POSEIDON_RETURN_IF_ERROR(bring_inputs(args.forward, needs_.inputs, plain.forward));
    if (output_ != nullptr) {
      if (needs_.output) POSEIDON_RETURN_IF_ERROR(named(output_->take(args.forward.output)));
      plain.forward.output = output_->values();
    }
    if (output_gradient_ != nullptr) {
      POSEIDON_RETURN_IF_ERROR(named(output_gradient_->take(args.output_gradient)));
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
      POSEIDON_RETURN_IF_ERROR(named(input_gradients_[i]->give(wanted)));
    }
    return absl::OkStatus();
  }

 private:
  /// Operators name their layer themselves.
  absl::Status named(const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat("layer '", layer_, "': ", status.message()));
  }
  absl::Status bring_inputs(const ForwardArgs& args, bool are_read, ForwardArgs& plain) {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      plain_inputs_[i] = args.inputs[i];
      if (inputs_[i] == nullptr) continue;
      if (are_read) POSEIDON_RETURN_IF_ERROR(named(inputs_[i]->take(args.inputs[i])));
      plain_inputs_[i] = inputs_[i]->values();
    }
    plain.inputs = plain_inputs_;
    return absl::OkStatus();
  }

  const std::string layer_;
  const std::unique_ptr<LayerOperator> plain_;
  const BackwardNeeds needs_;
  std::vector<std::unique_ptr<PlainTwin>> inputs_, input_gradients_;  // null: plain already
  std::unique_ptr<PlainTwin> output_, output_gradient_;
  std::vector<const float*> plain_inputs_;
  std::vector<float*> plain_input_gradients_;
};

}  // namespace

bool passes_layouts_on(LayerType type) {
  switch (type) {
    case LayerType::kPooling:
    case LayerType::kRelu:
    case LayerType::kLrn:
    case LayerType::kAdd:
    case LayerType::kBatchNorm:
    case LayerType::kConcat:
      return true;
    default:
      return false;
  }
}

absl::StatusOr<std::unique_ptr<LayerOperator>> adapt_layouts(std::unique_ptr<LayerOperator> plain,
                                                             const LayerSpec& layer,
                                                             const OperatorOptions& options,
                                                             const MakePlainTwin& make_twin) {
  auto adapter = std::make_unique<LayoutAdapter>(std::move(plain), layer);
  POSEIDON_RETURN_IF_ERROR(adapter->open(layer, options, make_twin));
  return adapter;
}

}  // namespace poseidon
