#include "models/weights/encoded_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {

std::string layer_of_tensor(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.'));
}

std::vector<TensorPlace> tensor_places(const NetSpec& net) {
  std::vector<TensorPlace> result;
  const std::vector<std::size_t> layers = net.parameter_layers();
  for (std::uint32_t l = 0; l < layers.size(); ++l) {
    const LayerSpec& layer = net.layers[layers[l]];
    std::size_t offset = 0;
    for (const ParameterSpec& parameter : layer.parameters) {
      result.push_back({.layer_name = layer.name,
                        .name = absl::StrCat(layer.name, ".", parameter.name),
                        .shape = parameter.shape,
                        .is_statistic = false,
                        .layer = LayerIndex(l),
                        .offset = offset});
      offset += result.back().elements();
    }
  }
  for (const StatisticPlace& statistic : statistic_places(net)) {
    result.push_back({.layer_name = layer_of_tensor(statistic.name),
                      .name = statistic.name,
                      .shape = statistic.shape,
                      .is_statistic = true,
                      .layer = LayerIndex(),
                      .offset = static_cast<std::size_t>(statistic.offset)});
  }
  return result;
}

absl::StatusOr<EncodedModel> EncodedModel::encode(
    const NetSpec& net, const std::vector<std::span<const float>>& parameters,
    std::vector<float> statistics) {
  EncodedModel model;
  model.statistics_ = std::move(statistics);
  std::vector<TensorView> tensors;
  for (const TensorPlace& place : tensor_places(net)) {
    std::span<const float> values = model.statistics_;
    if (!place.is_statistic) {
      values = place.layer.value() < parameters.size() ? parameters[place.layer.value()]
                                                       : std::span<const float>();
    }
    if (place.offset + place.elements() > values.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", place.name, " has ", place.elements(), " elements from ",
                       place.offset, " on, but there are ", values.size()));
    }
    tensors.push_back({place.name, place.shape, values.subspan(place.offset, place.elements())});
  }
  POSEIDON_ASSIGN_OR_RETURN(model.file_, encode_safetensors(tensors));
  return model;
}

std::vector<std::string_view> EncodedModel::pieces() const {
  std::vector<std::string_view> pieces = {file_.header};
  pieces.insert(pieces.end(), file_.values.begin(), file_.values.end());
  return pieces;
}

}  // namespace poseidon
