// Network file to NetSpec: reads each layer strictly, then infers its shapes. models/README.md is
// the format's description for people; keep the two in step.

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/json_fields.h"
#include "common/nearest.h"
#include "common/status_macros.h"
#include "common/text.h"
#include "worker/engine/net.h"
#include "worker/engine/net_expand.h"
#include "worker/engine/net_layer_names.h"
#include "worker/engine/net_names.h"

namespace poseidon {
namespace {

constexpr double kMaxInitialiser = 1e6;

// Product of sizes, all > 0 and <= kMaxDimension; nullopt beyond `bound`.
std::optional<std::int64_t> bounded_product(std::span<const std::int64_t> sizes,
                                            std::int64_t bound) {
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    if (product > bound / size) return std::nullopt;
    product *= size;
  }
  return product;
}

// absl::StrCat does not take Debian's std::string_view.
std::string type_name(LayerType type) { return std::string(layer_type_name(type)); }

std::string read_name(JsonFields& fields) {
  std::string name;
  fields.require("name");
  fields.string("name", &name);
  if (fields.ok() && !is_good_name(name)) {
    fields.refuse("name",
                  absl::StrCat("expected 1 to ", kMaxNameLength,
                               " letters, digits or any of _ - . /, got ", json_excerpt(name)));
  }
  return name;
}

std::int64_t read_outputs(JsonFields& fields) {
  std::int64_t outputs = 1;
  fields.require("outputs");
  fields.integer("outputs", &outputs, 1, kMaxDimension);
  return outputs;
}

// Works on one network file; `net_` grows layer by layer.
class Parser {
 public:
  absl::StatusOr<NetSpec> parse(const nlohmann::json& file);

 private:
  absl::Status parse_layer(const nlohmann::json& json, std::size_t index);
  void read_inputs(JsonFields& fields, LayerSpec& layer);
  void read_type(JsonFields& fields, LayerSpec& layer);
  void read_options(JsonFields& fields, LayerSpec& layer);
  void read_parameters(JsonFields& fields, LayerSpec& layer);
  void read_window(JsonFields& fields, LayerSpec& layer, bool stride_is_kernel);
  void infer_convolution(JsonFields& fields, LayerSpec& layer);
  void infer_pooling(JsonFields& fields, LayerSpec& layer);
  void infer_scores(JsonFields& fields, LayerSpec& layer);
  void infer_add(JsonFields& fields, LayerSpec& layer);
  void need_image(JsonFields& fields, const LayerSpec& layer);
  void add_parameter(JsonFields& fields, LayerSpec& layer, std::string name, Shape shape);
  absl::Status check_whole() const;

  std::string input_name(std::size_t input) const {
    return input == kNetworkInput ? std::string(kInputName) : net_.layers[input].name;
  }
  const Shape& shape_of(std::size_t input) const {
    return input == kNetworkInput ? net_.input_shape : net_.layers[input].output_shape;
  }
  /// "its input shape 20x12x12 (from 'pool1')": the second shape of every mismatch message.
  std::string input_phrase(const LayerSpec& layer) const {
    return absl::StrCat("its input shape ", shape_to_string(layer.input_shape), " (from '",
                        input_name(layer.inputs.front()), "')");
  }

  NetSpec net_;
  std::string where_;
  std::map<std::string, std::size_t, std::less<>> index_by_name_;
  std::vector<std::string> all_names_;  // also of layers not parsed yet, for better messages
};

absl::Status parse_initialiser(const nlohmann::json& json, std::string_view source,
                               std::string_view path, Initialiser& initialiser) {
  static const std::map<std::string, Initialiser::Type, std::less<>> kTypes = {
      {"constant", Initialiser::Type::kConstant},
      {"gaussian", Initialiser::Type::kGaussian},
      {"xavier", Initialiser::Type::kXavier},
      {"he", Initialiser::Type::kHe}};
  std::vector<std::string> names;
  for (const auto& entry : kTypes) names.push_back(entry.first);
  JsonFields fields(json, source, path);
  std::string type;
  fields.require("type");
  fields.one_of("type", &type, names);
  if (!fields.ok()) return fields.status();
  initialiser = Initialiser{};
  initialiser.type = kTypes.at(type);
  if (initialiser.type == Initialiser::Type::kConstant) {
    fields.number("value", &initialiser.value, {.min = -kMaxInitialiser, .max = kMaxInitialiser});
  } else if (initialiser.type == Initialiser::Type::kGaussian) {
    fields.number("std", &initialiser.std, {.min = 0.0, .max = kMaxInitialiser});
  }
  return fields.finish();
}

void Parser::read_type(JsonFields& fields, LayerSpec& layer) {
  std::vector<std::string> names;
  for (const auto& entry : kLayerTypeNames) names.emplace_back(entry.first);
  std::string type;
  fields.require("type");
  fields.one_of("type", &type, names);
  for (const auto& [name, known] : kLayerTypeNames) {
    if (name == type) layer.type = known;
  }
}

void Parser::read_inputs(JsonFields& fields, LayerSpec& layer) {
  std::vector<std::string> names;
  fields.strings("inputs", &names, 1, kMaxLayers);
  if (!fields.ok()) return;
  if (names.empty()) {
    layer.inputs.push_back(net_.layers.empty() ? kNetworkInput : net_.layers.size() - 1);
  }
  for (const std::string& name : names) {
    if (name == kInputName) {
      layer.inputs.push_back(kNetworkInput);
      continue;
    }
    const auto it = index_by_name_.find(name);
    if (it == index_by_name_.end()) {
      const bool later = std::find(all_names_.begin(), all_names_.end(), name) != all_names_.end();
      fields.refuse(
          later
              ? absl::StrCat("input ", json_excerpt(name),
                             " comes later in the file; put every layer after its inputs")
              : absl::StrCat("unknown input ", json_excerpt(name), did_you_mean(name, all_names_)));
      return;
    }
    layer.inputs.push_back(it->second);
  }
  const bool many = layer.type == LayerType::kAdd;
  if (many ? layer.inputs.size() < 2 : layer.inputs.size() != 1) {
    fields.refuse(absl::StrCat(type_name(layer.type), " takes ",
                               many ? "two or more inputs" : "one input", ", got ",
                               layer.inputs.size()));
  }
  for (const std::size_t input : layer.inputs) {
    if (input == kNetworkInput) continue;
    const LayerType type = net_.layers[input].type;
    if (type == LayerType::kSoftmaxCrossEntropy || type == LayerType::kAccuracy) {
      fields.refuse(absl::StrCat("reads '", input_name(input), "', but the output of a ",
                                 type_name(type),
                                 " layer is a result; name another layer in \"inputs\""));
    }
  }
}

void Parser::need_image(JsonFields& fields, const LayerSpec& layer) {
  if (layer.input_shape.size() != 3) {
    fields.refuse(absl::StrCat(type_name(layer.type),
                               " needs an image channels x height x width, but ",
                               input_phrase(layer), " is not one"));
  }
}

void Parser::add_parameter(JsonFields& fields, LayerSpec& layer, std::string name, Shape shape) {
  if (!bounded_product(shape, kMaxTensorElements)) {
    fields.refuse(absl::StrCat("its ", name, " ", shape_to_string(shape), " from ",
                               input_phrase(layer), " has more than ", kMaxTensorElements,
                               " elements"));
    return;
  }
  Initialiser initialiser;
  if (name == "bias") initialiser.type = Initialiser::Type::kConstant;
  layer.parameters.push_back({std::move(name), std::move(shape), initialiser});
}

void Parser::read_window(JsonFields& fields, LayerSpec& layer, bool stride_is_kernel) {
  fields.require("kernel");
  fields.height_width("kernel", &layer.kernel_h, &layer.kernel_w, 1, kMaxDimension);
  if (stride_is_kernel) {
    layer.stride_h = layer.kernel_h;
    layer.stride_w = layer.kernel_w;
  }
  fields.height_width("stride", &layer.stride_h, &layer.stride_w, 1, kMaxDimension);
  fields.height_width("pad", &layer.pad_h, &layer.pad_w, 0, kMaxDimension);
  if (!fields.ok()) return;
  need_image(fields, layer);
  if (!fields.ok()) return;
  if (layer.kernel_h > layer.input_shape[1] + 2 * layer.pad_h ||
      layer.kernel_w > layer.input_shape[2] + 2 * layer.pad_w) {
    fields.refuse(absl::StrCat("kernel ", layer.kernel_h, "x", layer.kernel_w, " is larger than ",
                               input_phrase(layer), " padded by ", layer.pad_h, "x", layer.pad_w));
  } else if (layer.pad_h >= layer.kernel_h || layer.pad_w >= layer.kernel_w) {
    fields.refuse(absl::StrCat("pad ", layer.pad_h, "x", layer.pad_w,
                               " must be smaller than kernel ", layer.kernel_h, "x", layer.kernel_w,
                               ": windows of padding alone mean nothing"));
  }
}

void Parser::infer_convolution(JsonFields& fields, LayerSpec& layer) {
  const std::int64_t outputs = read_outputs(fields);
  bool bias = true;
  fields.integer("groups", &layer.groups, 1, kMaxDimension);
  fields.boolean("bias", &bias);
  read_window(fields, layer, false);
  if (!fields.ok()) return;
  const std::int64_t channels = layer.input_shape[0];
  if (channels % layer.groups != 0 || outputs % layer.groups != 0) {
    fields.refuse(absl::StrCat("groups ", layer.groups, " must divide both its ", outputs,
                               " outputs and the channels of ", input_phrase(layer)));
    return;
  }
  const auto extent = [](std::int64_t size, std::int64_t kernel, std::int64_t stride,
                         std::int64_t pad) { return (size + 2 * pad - kernel) / stride + 1; };
  layer.output_shape = {outputs,
                        extent(layer.input_shape[1], layer.kernel_h, layer.stride_h, layer.pad_h),
                        extent(layer.input_shape[2], layer.kernel_w, layer.stride_w, layer.pad_w)};
  add_parameter(fields, layer, "weight",
                {outputs, channels / layer.groups, layer.kernel_h, layer.kernel_w});
  if (bias) add_parameter(fields, layer, "bias", {outputs});
  if (!fields.ok()) return;
  const std::int64_t macs[] = {element_count(layer.parameters.front().shape), layer.output_shape[1],
                               layer.output_shape[2]};
  if (const auto product = bounded_product(macs, kMaxLayerMultiplyAdds)) {
    layer.multiply_adds = *product;
  } else {
    fields.refuse(absl::StrCat("more than ", kMaxLayerMultiplyAdds, " multiply-adds per sample on ",
                               input_phrase(layer)));
  }
}

void Parser::infer_pooling(JsonFields& fields, LayerSpec& layer) {
  std::string pool;
  fields.require("pool");
  fields.one_of("pool", &pool, {"max", "average"});
  fields.boolean("ceil_mode", &layer.ceil_mode);
  layer.pool = pool == "max" ? LayerSpec::Pool::kMax : LayerSpec::Pool::kAverage;
  read_window(fields, layer, true);
  if (!fields.ok()) return;
  const auto extent = [&](std::int64_t size, std::int64_t kernel, std::int64_t stride,
                          std::int64_t pad) {
    const std::int64_t room = size + 2 * pad - kernel;
    std::int64_t count = (layer.ceil_mode ? (room + stride - 1) / stride : room / stride) + 1;
    // As Caffe and PyTorch do: the last window must begin inside the image or its left padding.
    if (layer.ceil_mode && (count - 1) * stride >= size + pad) --count;
    return count;
  };
  layer.output_shape = {layer.input_shape[0],
                        extent(layer.input_shape[1], layer.kernel_h, layer.stride_h, layer.pad_h),
                        extent(layer.input_shape[2], layer.kernel_w, layer.stride_w, layer.pad_w)};
}

void Parser::infer_scores(JsonFields& fields, LayerSpec& layer) {
  const std::int64_t classes = element_count(layer.input_shape);
  if (classes != layer.input_shape.front()) {
    fields.refuse(absl::StrCat(type_name(layer.type), " needs one score per class, shape ", classes,
                               ", but ", input_phrase(layer),
                               " is an image; put a fully_connected layer between"));
    return;
  }
  if (classes < 2) {
    fields.refuse(absl::StrCat(type_name(layer.type), " needs two or more classes, but ",
                               input_phrase(layer), " has one"));
    return;
  }
  layer.output_shape = {1};
  if (layer.type == LayerType::kSoftmaxCrossEntropy) net_.classes = classes;
}

void Parser::infer_add(JsonFields& fields, LayerSpec& layer) {
  for (const std::size_t input : layer.inputs) {
    if (shape_of(input) == layer.input_shape) continue;
    fields.refuse(absl::StrCat("cannot add shape ", shape_to_string(shape_of(input)), " (from '",
                               input_name(input), "') to ", input_phrase(layer)));
    return;
  }
  layer.output_shape = layer.input_shape;
}

void Parser::read_options(JsonFields& fields, LayerSpec& layer) {
  layer.output_shape = layer.input_shape;
  switch (layer.type) {
    case LayerType::kConvolution:
      infer_convolution(fields, layer);
      break;
    case LayerType::kPooling:
      infer_pooling(fields, layer);
      break;
    case LayerType::kFullyConnected: {
      const std::int64_t outputs = read_outputs(fields);
      bool bias = true;
      fields.boolean("bias", &bias);
      const std::int64_t inputs = element_count(layer.input_shape);
      layer.output_shape = {outputs};
      add_parameter(fields, layer, "weight", {outputs, inputs});
      if (bias) add_parameter(fields, layer, "bias", {outputs});
      layer.multiply_adds = fields.ok() ? outputs * inputs : 0;
      break;
    }
    case LayerType::kRelu:
      break;
    case LayerType::kLrn:
      fields.integer("local_size", &layer.local_size, 1, kMaxDimension);
      fields.number("alpha", &layer.alpha, {.min = 0.0, .max = kMaxInitialiser});
      fields.number("beta", &layer.beta, {.min = 0.0, .max = kMaxInitialiser});
      fields.number("k", &layer.k, {.min = 1e-6, .max = kMaxInitialiser});
      if (layer.local_size % 2 == 0) {
        fields.refuse("local_size", absl::StrCat("must be odd, got ", layer.local_size));
      }
      need_image(fields, layer);
      break;
    case LayerType::kDropout:
      // Below 1 by more than a rounding error of float: 1 / (1 - ratio) must stay finite.
      fields.number("ratio", &layer.dropout_ratio, {.min = 0.0, .max = 0.999});
      break;
    case LayerType::kSoftmaxCrossEntropy:
    case LayerType::kAccuracy:
      infer_scores(fields, layer);
      break;
    case LayerType::kAdd:
      infer_add(fields, layer);
      break;
  }
  if (fields.ok() && !bounded_product(layer.output_shape, kMaxTensorElements)) {
    fields.refuse(absl::StrCat("its output shape ", shape_to_string(layer.output_shape), " from ",
                               input_phrase(layer), " has more than ", kMaxTensorElements,
                               " elements"));
  }
}

void Parser::read_parameters(JsonFields& fields, LayerSpec& layer) {
  const nlohmann::json* init = fields.value("init");
  if (init == nullptr || !fields.ok()) return;
  JsonFields init_fields(*init, fields.source(), fields.path_of("init"));
  for (ParameterSpec& parameter : layer.parameters) {
    const nlohmann::json* json = init_fields.value(parameter.name);
    if (json == nullptr) continue;
    init_fields.add(parse_initialiser(*json, fields.source(), init_fields.path_of(parameter.name),
                                      parameter.initialiser));
  }
  fields.add(init_fields.finish());
}

absl::Status Parser::parse_layer(const nlohmann::json& json, std::size_t index) {
  const std::string unnamed = absl::StrCat("layers[", index, "]");
  JsonFields fields(json, str_cat(where_, ": ", place_of(json, "layer", unnamed)), "");
  LayerSpec layer;
  layer.name = read_name(fields);
  if (layer.name == kInputName) {
    fields.refuse("this name is kept for the network's data; choose another");
  }
  if (index_by_name_.contains(layer.name)) {
    fields.refuse("another layer has this name already; names must differ");
  }
  read_type(fields, layer);
  if (!fields.ok()) return fields.status();
  read_inputs(fields, layer);
  if (!fields.ok()) return fields.status();
  layer.input_shape = shape_of(layer.inputs.front());
  read_options(fields, layer);
  if (layer.type == LayerType::kConvolution || layer.type == LayerType::kFullyConnected) {
    read_parameters(fields, layer);
  }
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  index_by_name_.emplace(layer.name, net_.layers.size());
  net_.layers.push_back(std::move(layer));
  return absl::OkStatus();
}

absl::Status Parser::check_whole() const {
  const auto refuse = [&](auto&&... words) {
    return absl::InvalidArgumentError(absl::StrCat(where_, ": ", words...));
  };
  std::vector<bool> is_read(net_.layers.size(), false);
  int losses = 0, accuracies = 0;
  for (const LayerSpec& layer : net_.layers) {
    losses += layer.type == LayerType::kSoftmaxCrossEntropy ? 1 : 0;
    accuracies += layer.type == LayerType::kAccuracy ? 1 : 0;
    for (const std::size_t input : layer.inputs) {
      if (input != kNetworkInput && layer.type != LayerType::kAccuracy) is_read[input] = true;
    }
  }
  if (losses != 1) {
    return refuse("needs exactly one softmax_cross_entropy layer (the loss), has ", losses);
  }
  if (accuracies > 1) return refuse("may have one accuracy layer, has ", accuracies);
  for (std::size_t i = 0; i < net_.layers.size(); ++i) {
    const LayerSpec& layer = net_.layers[i];
    const std::int64_t scores = element_count(layer.input_shape);
    if (layer.type == LayerType::kAccuracy && scores != net_.classes) {
      return refuse("layer '", layer.name, "': its input shape ",
                    shape_to_string(layer.input_shape), " differs from the loss's ", net_.classes,
                    " classes");
    }
    if (layer.type == LayerType::kSoftmaxCrossEntropy || layer.type == LayerType::kAccuracy) {
      continue;
    }
    if (!is_read[i]) {
      return refuse("layer '", layer.name, "': its output does not reach the loss, no layer reads ",
                    "it; name it in the \"inputs\" of another layer or remove it");
    }
  }
  if (net_.parameter_layers().empty()) return refuse("no layer has parameters: nothing to train");
  return absl::OkStatus();
}

absl::StatusOr<NetSpec> Parser::parse(const nlohmann::json& file) {
  where_ = place_of(file, "network", "network");
  POSEIDON_ASSIGN_OR_RETURN(const nlohmann::json json, expand_network(file, where_));
  JsonFields fields(json, where_, "");
  for (const char* expanded : {"blocks", "defaults"}) fields.value(expanded);
  net_.name = read_name(fields);
  fields.require("input");
  fields.integers("input", &net_.input_shape, 1, kMaxDimension, 1, 3);
  if (net_.input_shape.size() == 2) {
    fields.refuse("input", absl::StrCat("expected [features] or [channels, height, width], got ",
                                        shape_to_string(net_.input_shape)));
  }
  if (!bounded_product(net_.input_shape, kMaxTensorElements)) {
    fields.refuse("input", absl::StrCat(shape_to_string(net_.input_shape), " has more than ",
                                        kMaxTensorElements, " elements"));
  }
  fields.require("layers");
  const nlohmann::json* layers = fields.array("layers", "layers", 1, kMaxLayers);
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  for (const auto& layer : *layers) {
    if (!layer.is_object()) continue;
    const auto name = layer.find("name");
    if (name != layer.end() && name->is_string()) {
      all_names_.push_back(name->get<std::string>());
    }
  }
  for (std::size_t i = 0; i < layers->size(); ++i) {
    POSEIDON_RETURN_IF_ERROR(parse_layer((*layers)[i], i));
  }
  POSEIDON_RETURN_IF_ERROR(check_whole());
  net_.source = file;
  return std::move(net_);
}

}  // namespace

absl::StatusOr<NetSpec> parse_network(const nlohmann::json& json) { return Parser().parse(json); }

}  // namespace poseidon
