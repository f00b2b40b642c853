#include "models/weights/encoded_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "models/net/model_tensors.h"

namespace poseidon {

std::string layer_of_tensor(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.'));
}

absl::StatusOr<EncodedModel> EncodedModel::encode(
    const ModelLayout& layout, const std::vector<std::span<const float>>& parameters,
    std::vector<float> statistics) {
  EncodedModel model;
  model.statistics_ = std::move(statistics);
  std::vector<TensorView> tensors;
  for (const ModelTensor& place : model_tensors(layout)) {
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
