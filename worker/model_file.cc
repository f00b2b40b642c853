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
  LayerIndex layer;
  std::size_t offset = 0;  ///< in the layer's parameters

  std::span<float> values(Executor& executor) const {
    const auto count = static_cast<std::size_t>(element_count(shape));
    return executor.parameters(layer).subspan(offset, count);
  }
};

std::vector<Place> places(const NetSpec& net) {
  std::vector<Place> result;
  const std::vector<std::size_t> layers = net.parameter_layers();
  for (std::uint32_t l = 0; l < layers.size(); ++l) {
    const LayerSpec& layer = net.layers[layers[l]];
    std::size_t offset = 0;
    for (const ParameterSpec& parameter : layer.parameters) {
      result.push_back({.name = absl::StrCat(layer.name, ".", parameter.name),
                        .shape = parameter.shape,
                        .layer = LayerIndex(l),
                        .offset = offset});
      offset += static_cast<std::size_t>(element_count(parameter.shape));
    }
  }
  return result;
}

struct Match {
  WeightsReport report;
  std::vector<std::pair<const Tensor*, Place>> copies;
};

absl::StatusOr<Match> match(const std::filesystem::path& path, const SafetensorsFile& file,
                            const NetSpec& net) {
  Match result;
  std::set<std::string> known;
  for (const Place& place : places(net)) {
    known.insert(place.name);
    const Tensor* tensor = file.find(place.name);
    if (tensor == nullptr) {
      result.report.not_in_file.push_back(place.name);
      continue;
    }
    if (tensor->shape != place.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          path.string(), ": tensor ", place.name, " has shape ", shape_to_string(tensor->shape),
          ", the network wants ", shape_to_string(place.shape)));
    }
    result.report.loaded.push_back(place.name);
    result.copies.emplace_back(tensor, place);
  }
  for (const Tensor& tensor : file.tensors) {
    if (!known.contains(tensor.name)) result.report.not_in_network.push_back(tensor.name);
  }
  if (result.copies.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path.string(), ": none of its ", file.tensors.size(),
        " tensors has a name of the network (names are <layer>.weight, <layer>.bias, e.g. ",
        known.empty() ? "" : *known.begin(), ")"));
  }
  return result;
}

}  // namespace

absl::StatusOr<std::string> encode_model(Executor& executor) {
  std::vector<TensorView> tensors;
  for (const Place& place : places(executor.net())) {
    tensors.push_back({place.name, place.shape, place.values(executor)});
  }
  return encode_safetensors(tensors);
}

absl::StatusOr<WeightsReport> check_weights(const std::filesystem::path& path, const NetSpec& net) {
  POSEIDON_ASSIGN_OR_RETURN(const SafetensorsFile file, load_safetensors(path));
  POSEIDON_ASSIGN_OR_RETURN(Match found, match(path, file, net));
  return std::move(found.report);
}

absl::StatusOr<WeightsReport> load_weights(const std::filesystem::path& path, Executor& executor) {
  POSEIDON_ASSIGN_OR_RETURN(const SafetensorsFile file, load_safetensors(path));
  POSEIDON_ASSIGN_OR_RETURN(Match found, match(path, file, executor.net()));
  for (const auto& [tensor, place] : found.copies) {
    std::ranges::copy(tensor->values, place.values(executor).begin());
  }
  return std::move(found.report);
}

}  // namespace poseidon
