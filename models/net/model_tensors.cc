#include "models/net/model_tensors.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/files/json_fields.h"

namespace poseidon {

std::vector<ModelTensor> model_tensors(const ModelLayout& layout) {
  std::vector<ModelTensor> tensors;
  for (std::uint32_t l = 0; l < layout.layers.size(); ++l) {
    const LayoutLayer& layer = layout.layers[l];
    std::size_t offset = 0;
    for (const LayoutTensor& tensor : layer.tensors) {
      tensors.push_back({.layer_name = layer.name,
                         .name = full_tensor_name(layer.name, tensor.name),
                         .shape = tensor.shape,
                         .is_statistic = false,
                         .layer = LayerIndex(l),
                         .offset = offset});
      offset += tensors.back().elements();
    }
  }
  for (const StatisticPlace& statistic : layout.statistics) {
    tensors.push_back({.layer_name = statistic.name.substr(0, statistic.name.rfind('.')),
                       .name = statistic.name,
                       .shape = statistic.shape,
                       .is_statistic = true,
                       .layer = LayerIndex(),
                       .offset = static_cast<std::size_t>(statistic.offset)});
  }
  return tensors;
}

absl::Status check_model_tensors(const SafetensorsHeader& file,
                                 std::span<const ModelTensor> tensors) {
  for (const ModelTensor& tensor : tensors) {
    const StoredTensor* stored = file.find(tensor.name);
    if (stored == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model lacks tensor ", tensor.name, " of the job's network"));
    }
    if (stored->shape != tensor.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", tensor.name, " of the model has shape ", shape_to_string(stored->shape),
          ", the job's network has ", shape_to_string(tensor.shape)));
    }
    if (stored->dtype != "F32") {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.name, " of the model is ", stored->dtype, ", not F32"));
    }
  }
  if (file.tensors.size() == tensors.size()) return absl::OkStatus();
  const auto is_foreign = [&](const StoredTensor& stored) {
    return std::ranges::find(tensors, stored.name, &ModelTensor::name) == tensors.end();
  };
  const auto foreign = std::ranges::find_if(file.tensors, is_foreign);
  return absl::InvalidArgumentError(
      absl::StrCat("the model has a tensor ",
                   foreign == file.tensors.end() ? "twice" : json_excerpt(foreign->name),
                   ", which the job's network does not have"));
}

}  // namespace poseidon
