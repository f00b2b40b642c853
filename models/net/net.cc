#include "models/net/net.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/net/net_layer_names.h"

namespace poseidon {

std::string shape_to_string(const Shape& shape) { return absl::StrJoin(shape, "x"); }

std::string_view layer_type_name(LayerType type) {
  for (const auto& [name, known] : kLayerTypeNames) {
    if (known == type) return name;
  }
  return "unknown";
}

std::int64_t LayerSpec::parameter_count() const {
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : parameters) count += element_count(parameter.shape);
  return count;
}

std::int64_t NetSpec::parameter_count() const {
  std::int64_t count = 0;
  for (const LayerSpec& layer : layers) count += layer.parameter_count();
  return count;
}

std::int64_t NetSpec::statistics_count() const {
  std::int64_t count = 0;
  for (const LayerSpec& layer : layers) {
    for (const ParameterSpec& tensor : layer.statistics) count += element_count(tensor.shape);
  }
  return count;
}

std::int64_t NetSpec::multiply_adds() const {
  std::int64_t count = 0;
  for (const LayerSpec& layer : layers) count += layer.multiply_adds;
  return count;
}

std::vector<std::size_t> NetSpec::parameter_layers() const {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].parameters.empty()) indices.push_back(i);
  }
  return indices;
}

std::vector<StatisticPlace> statistic_places(const NetSpec& net) {
  std::vector<StatisticPlace> places;
  std::int64_t offset = 0;
  for (const LayerSpec& layer : net.layers) {
    for (const ParameterSpec& tensor : layer.statistics) {
      places.push_back({absl::StrCat(layer.name, ".", tensor.name), tensor.shape, offset});
      offset += element_count(tensor.shape);
    }
  }
  return places;
}

}  // namespace poseidon
