#include "worker/model_file.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/safetensors.h"
#include "common/status_macros.h"

namespace poseidon {
namespace {

/// Where one tensor of the network lives.
struct Place {
  std::string name;
  Shape shape;
  std::span<float> values;
};

std::vector<Place> places(Executor& executor) {
  std::vector<Place> result;
  const NetSpec& net = executor.net();
  const std::vector<std::size_t> layers = net.parameter_layers();
  for (std::uint32_t l = 0; l < layers.size(); ++l) {
    const LayerSpec& layer = net.layers[layers[l]];
    std::span<float> rest = executor.parameters(LayerIndex(l));
    for (const ParameterSpec& parameter : layer.parameters) {
      const auto count = static_cast<std::size_t>(element_count(parameter.shape));
      result.push_back(
          {absl::StrCat(layer.name, ".", parameter.name), parameter.shape, rest.subspan(0, count)});
      rest = rest.subspan(count);
    }
  }
  return result;
}

}  // namespace

absl::StatusOr<std::string> encode_model(Executor& executor) {
  std::vector<TensorView> tensors;
  for (const Place& place : places(executor)) {
    tensors.push_back({place.name, place.shape, place.values});
  }
  return encode_safetensors(tensors);
}

absl::StatusOr<WeightsReport> load_weights(const std::filesystem::path& path, Executor& executor) {
  POSEIDON_ASSIGN_OR_RETURN(const SafetensorsFile file, load_safetensors(path));
  WeightsReport report;
  std::vector<std::pair<const Tensor*, std::span<float>>> copies;
  std::set<std::string> known;
  for (const Place& place : places(executor)) {
    known.insert(place.name);
    const Tensor* tensor = file.find(place.name);
    if (tensor == nullptr) {
      report.not_in_file.push_back(place.name);
      continue;
    }
    if (tensor->shape != place.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          path.string(), ": tensor ", place.name, " has shape ", shape_to_string(tensor->shape),
          ", the network wants ", shape_to_string(place.shape)));
    }
    report.loaded.push_back(place.name);
    copies.emplace_back(tensor, place.values);
  }
  for (const Tensor& tensor : file.tensors) {
    if (!known.contains(tensor.name)) report.not_in_network.push_back(tensor.name);
  }
  if (copies.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path.string(), ": none of its ", file.tensors.size(),
        " tensors has a name of the network (names are <layer>.weight, <layer>.bias, e.g. ",
        known.empty() ? "" : *known.begin(), ")"));
  }
  for (const auto& [tensor, values] : copies) std::ranges::copy(tensor->values, values.begin());
  return report;
}

}  // namespace poseidon
