#include "models/net/model_layout.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/json_fields.h"
#include "common/job/declared_model.h"
#include "models/net/net_names.h"

namespace poseidon {
namespace {

constexpr char kDeclared[] = "declared";

Shape read_shape(JsonFields& fields) {
  Shape shape;
  fields.require("shape");
  // A scalar has no dimensions.
  fields.integers("shape", &shape, 1, kMaxTensorElements, 0, kMaxDeclaredDimensions);
  std::int64_t elements = 1;
  for (const std::int64_t dimension : shape) {
    if (elements > kMaxTensorElements / dimension) {
      fields.refuse("shape", absl::StrCat("expected at most ", kMaxTensorElements,
                                          " elements, got ", shape_to_string(shape)));
      return shape;
    }
    elements *= dimension;
  }
  return shape;
}

/// One declared model; `names_` has the full names of all tensors so far.
class Reader {
 public:
  absl::StatusOr<ModelLayout> read(const nlohmann::json& model) {
    const std::string where = place_of(model, "model", "model");
    JsonFields fields(model, where, "");
    layout_.name = read_name(fields);
    fields.require(kDeclared);
    const nlohmann::json* layers = fields.array(kDeclared, "layers", 1, kMaxDeclaredLayers);
    const nlohmann::json* state = fields.array("state", "tensors", 0, kMaxDeclaredLayers);
    POSEIDON_RETURN_IF_ERROR(fields.finish());
    for (std::size_t l = 0; l < layers->size(); ++l) {
      const nlohmann::json& layer = (*layers)[l];
      POSEIDON_RETURN_IF_ERROR(read_layer(
          layer,
          str_cat(where, ": ", place_of(layer, "layer", absl::StrCat(kDeclared, "[", l, "]")))));
    }
    if (state == nullptr) return std::move(layout_);
    for (std::size_t s = 0; s < state->size(); ++s) {
      POSEIDON_RETURN_IF_ERROR(read_state((*state)[s], absl::StrCat(where, ": state[", s, "]")));
    }
    return std::move(layout_);
  }

 private:
  absl::Status read_layer(const nlohmann::json& json, const std::string& where) {
    JsonFields fields(json, where, "");
    LayoutLayer layer;
    layer.name = read_name(fields);
    layer.type = kDeclaredPlain;
    fields.one_of("type", &layer.type, {kDeclaredPlain, kDeclaredLinear});
    layer.is_linear = layer.type == kDeclaredLinear;
    fields.integer("multiply_adds", &layer.multiply_adds, 0, kMaxLayerMultiplyAdds);
    fields.require("tensors");
    const nlohmann::json* tensors = fields.array("tensors", "tensors", 1, kMaxDeclaredLayers);
    if (fields.ok() && !layers_.insert(layer.name).second) {
      fields.refuse("another layer has this name already; names must differ");
    }
    POSEIDON_RETURN_IF_ERROR(fields.finish());
    std::int64_t elements = 0;
    for (std::size_t t = 0; t < tensors->size(); ++t) {
      JsonFields of_tensor((*tensors)[t], where, absl::StrCat("tensors[", t, "]"));
      LayoutTensor tensor;
      if (of_tensor.has("name")) tensor.name = read_name(of_tensor);
      tensor.shape = read_shape(of_tensor);
      take_name(of_tensor, full_tensor_name(layer.name, tensor.name));
      elements += element_count(tensor.shape);
      if (of_tensor.ok() && elements > kMaxTensorElements) {
        of_tensor.refuse("shape", absl::StrCat("the layer has more than ", kMaxTensorElements,
                                               " elements with it"));
      }
      POSEIDON_RETURN_IF_ERROR(of_tensor.finish());
      layer.tensors.push_back(std::move(tensor));
    }
    if (layer.is_linear && layer.tensors.front().shape.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": a linear layer's first tensor is its weight, outputs x inputs; got shape ",
          shape_to_string(layer.tensors.front().shape)));
    }
    layout_.layers.push_back(std::move(layer));
    return absl::OkStatus();
  }

  absl::Status read_state(const nlohmann::json& json, const std::string& where) {
    JsonFields fields(json, where, "");
    StatisticPlace place;
    place.name = read_name(fields);
    place.shape = read_shape(fields);
    take_name(fields, place.name);
    place.offset = layout_.statistics_count();
    if (fields.ok() && place.offset + element_count(place.shape) > kMaxTensorElements) {
      fields.refuse("shape",
                    absl::StrCat("all state has more than ", kMaxTensorElements, " elements"));
    }
    POSEIDON_RETURN_IF_ERROR(fields.finish());
    layout_.statistics.push_back(std::move(place));
    return absl::OkStatus();
  }

  void take_name(JsonFields& fields, const std::string& name) {
    if (fields.ok() && !names_.insert(name).second) {
      fields.refuse(absl::StrCat("another tensor is called ", name, " already; names must differ"));
    }
  }

  ModelLayout layout_;
  std::set<std::string> layers_, names_;
};

std::string shape_text(const Shape& shape) {
  return shape.empty() ? "of one value" : shape_to_string(shape);
}

std::string shape_difference(const std::string& what, const Shape& here, const Shape& there) {
  if (here == there) return "";
  return absl::StrCat(what, " has shape ", shape_text(here), " here, ", shape_text(there),
                      " there");
}

std::string name_difference(const std::string& what, const std::string& here,
                            const std::string& there) {
  if (here == there) return "";
  return absl::StrCat(what, " is ", here.empty() ? "without a name" : here, " here, ",
                      there.empty() ? "without a name" : there, " there");
}

std::string layer_difference(const LayoutLayer& here, const LayoutLayer& there) {
  for (std::size_t t = 0; t < std::min(here.tensors.size(), there.tensors.size()); ++t) {
    const LayoutTensor &ours = here.tensors[t], &theirs = there.tensors[t];
    if (std::string text = name_difference(absl::StrCat("tensor ", t), ours.name, theirs.name);
        !text.empty()) {
      return text;
    }
    const std::string tensor = absl::StrCat("tensor ", full_tensor_name(here.name, ours.name));
    if (std::string text = shape_difference(tensor, ours.shape, theirs.shape); !text.empty()) {
      return text;
    }
  }
  if (here.tensors.size() != there.tensors.size()) {
    return absl::StrCat("it has ", here.tensors.size(), " tensors here, ", there.tensors.size(),
                        " there");
  }
  return here.type == there.type
             ? ""
             : absl::StrCat("it is ", here.type, " here, ", there.type, " there");
}

}  // namespace

std::int64_t LayoutLayer::parameter_count() const {
  std::int64_t count = 0;
  for (const LayoutTensor& tensor : tensors) count += element_count(tensor.shape);
  return count;
}

std::int64_t ModelLayout::statistics_count() const {
  if (statistics.empty()) return 0;
  return statistics.back().offset + element_count(statistics.back().shape);
}

std::string full_tensor_name(const std::string& layer, const std::string& tensor) {
  return tensor.empty() ? layer : absl::StrCat(layer, ".", tensor);
}

ModelLayout layout_of(const NetSpec& net) {
  ModelLayout layout{.name = net.name, .layers = {}, .statistics = statistic_places(net)};
  for (const std::size_t index : net.parameter_layers()) {
    const LayerSpec& layer = net.layers[index];
    layout.layers.push_back({.name = layer.name,
                             .type = std::string(layer_type_name(layer.type)),
                             .tensors = {},
                             .is_linear = layer.type == LayerType::kFullyConnected,
                             .multiply_adds = layer.multiply_adds});
    for (const ParameterSpec& tensor : layer.parameters) {
      layout.layers.back().tensors.push_back({.name = tensor.name, .shape = tensor.shape});
    }
  }
  return layout;
}

absl::StatusOr<ModelLayout> parse_declared_model(const nlohmann::json& model) {
  return Reader().read(model);
}

std::string layout_difference(const ModelLayout& here, const ModelLayout& there) {
  for (std::size_t l = 0; l < std::min(here.layers.size(), there.layers.size()); ++l) {
    const LayoutLayer &ours = here.layers[l], &theirs = there.layers[l];
    if (std::string text = name_difference(absl::StrCat("layer ", l), ours.name, theirs.name);
        !text.empty()) {
      return text;
    }
    if (const std::string text = layer_difference(ours, theirs); !text.empty()) {
      return absl::StrCat("layer ", l, ", ", ours.name, ": ", text);
    }
  }
  if (here.layers.size() != there.layers.size()) {
    return absl::StrCat(here.layers.size(), " layers here, ", there.layers.size(), " there");
  }
  for (std::size_t s = 0; s < std::min(here.statistics.size(), there.statistics.size()); ++s) {
    const StatisticPlace &ours = here.statistics[s], &theirs = there.statistics[s];
    if (std::string text = name_difference(absl::StrCat("state ", s), ours.name, theirs.name);
        !text.empty()) {
      return text;
    }
    if (std::string text =
            shape_difference(absl::StrCat("state ", ours.name), ours.shape, theirs.shape);
        !text.empty()) {
      return text;
    }
  }
  if (here.statistics.size() == there.statistics.size()) return "";
  return absl::StrCat(here.statistics.size(), " tensors of state here, ", there.statistics.size(),
                      " there");
}

absl::StatusOr<ModelLayout> resolve_layout(const nlohmann::json& model,
                                           const std::filesystem::path& folder) {
  if (is_declared_model(model)) return parse_declared_model(model);
  POSEIDON_ASSIGN_OR_RETURN(const NetSpec net, resolve_network(model, folder));
  return layout_of(net);
}

}  // namespace poseidon
