// Network file to NetSpec: reads each layer strictly, then infers its shapes. models/README.md is
// the format's description for people; keep the two in step.

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/nearest.h"
#include "common/status_macros.h"
#include "worker/engine/net.h"
#include "worker/engine/net_json.h"
#include "worker/engine/net_layer_names.h"

namespace poseidon {
namespace {

constexpr char kNetworkInputName[] = "input";
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

bool is_good_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameLength &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.' || c == '/';
         });
}

// absl::StrCat does not take Debian's std::string_view.
std::string type_name(LayerType type) { return std::string(layer_type_name(type)); }

std::string read_name(FieldReader& reader) {
  std::string name = reader.string("name");
  if (reader.ok() && !is_good_name(name)) {
    reader.fail(absl::StrCat("\"name\" must be 1 to ", kMaxNameLength,
                             " letters, digits or any of _ - . /, got ", json_excerpt(name)));
  }
  return name;
}

// Works on one network file; `net_` grows layer by layer.
class Parser {
 public:
  absl::StatusOr<NetSpec> parse(const nlohmann::json& json);

 private:
  absl::Status parse_layer(const nlohmann::json& json, std::size_t index);
  absl::Status read_inputs(FieldReader& reader, LayerSpec& layer);
  void read_type(FieldReader& reader, LayerSpec& layer);
  void read_options(FieldReader& reader, LayerSpec& layer);
  void read_parameters(FieldReader& reader, LayerSpec& layer);
  void read_window(FieldReader& reader, LayerSpec& layer, bool stride_is_kernel);
  void infer_convolution(FieldReader& reader, LayerSpec& layer);
  void infer_pooling(FieldReader& reader, LayerSpec& layer);
  void infer_scores(FieldReader& reader, LayerSpec& layer);
  void infer_add(FieldReader& reader, LayerSpec& layer);
  void need_image(FieldReader& reader, const LayerSpec& layer);
  void add_parameter(FieldReader& reader, LayerSpec& layer, std::string name, Shape shape);
  absl::Status check_whole() const;

  std::string input_name(std::size_t input) const {
    return input == kNetworkInput ? std::string(kNetworkInputName) : net_.layers[input].name;
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

absl::Status parse_initialiser(const nlohmann::json& json, const std::string& where,
                               Initialiser& initialiser) {
  static const std::map<std::string, Initialiser::Type, std::less<>> kTypes = {
      {"constant", Initialiser::Type::kConstant},
      {"gaussian", Initialiser::Type::kGaussian},
      {"xavier", Initialiser::Type::kXavier},
      {"he", Initialiser::Type::kHe}};
  FieldReader reader(json, where);
  const std::string type = reader.string("type");
  const auto it = kTypes.find(type);
  if (it == kTypes.end()) {
    std::vector<std::string> names;
    for (const auto& entry : kTypes) names.push_back(entry.first);
    reader.fail(absl::StrCat("unknown initialiser type ", json_excerpt(type),
                             did_you_mean(type, names), "; known are ",
                             absl::StrJoin(names, ", ")));
    return reader.finish();
  }
  initialiser = Initialiser{};
  initialiser.type = it->second;
  if (initialiser.type == Initialiser::Type::kConstant) {
    initialiser.value = reader.number("value", -kMaxInitialiser, kMaxInitialiser, 0.0);
  } else if (initialiser.type == Initialiser::Type::kGaussian) {
    initialiser.std = reader.number("std", 0.0, kMaxInitialiser, initialiser.std);
  }
  return reader.finish();
}

void Parser::read_type(FieldReader& reader, LayerSpec& layer) {
  const std::string type = reader.string("type");
  if (!reader.ok()) return;
  std::vector<std::string> names;
  for (const auto& [name, known] : kLayerTypeNames) {
    names.emplace_back(name);
    if (name == type) {
      layer.type = known;
      return;
    }
  }
  reader.fail(absl::StrCat("unknown layer type ", json_excerpt(type), did_you_mean(type, names),
                           "; known are ", absl::StrJoin(names, ", ")));
}

absl::Status Parser::read_inputs(FieldReader& reader, LayerSpec& layer) {
  const std::vector<std::string> names = reader.strings("inputs");
  if (!reader.ok()) return reader.finish();
  if (names.empty()) {
    layer.inputs.push_back(net_.layers.empty() ? kNetworkInput : net_.layers.size() - 1);
  }
  for (const std::string& name : names) {
    if (name == kNetworkInputName) {
      layer.inputs.push_back(kNetworkInput);
      continue;
    }
    const auto it = index_by_name_.find(name);
    if (it == index_by_name_.end()) {
      const bool later = std::find(all_names_.begin(), all_names_.end(), name) != all_names_.end();
      reader.fail(later ? absl::StrCat("input ", json_excerpt(name),
                                       " comes later in the file; put every layer after its inputs")
                        : absl::StrCat("unknown input ", json_excerpt(name),
                                       did_you_mean(name, all_names_)));
      return reader.finish();
    }
    layer.inputs.push_back(it->second);
  }
  const bool many = layer.type == LayerType::kAdd;
  if (many ? layer.inputs.size() < 2 : layer.inputs.size() != 1) {
    reader.fail(absl::StrCat(type_name(layer.type), " takes ",
                             many ? "two or more inputs" : "one input", ", got ",
                             layer.inputs.size()));
  }
  for (const std::size_t input : layer.inputs) {
    if (input == kNetworkInput) continue;
    const LayerType type = net_.layers[input].type;
    if (type == LayerType::kSoftmaxCrossEntropy || type == LayerType::kAccuracy) {
      reader.fail(absl::StrCat("reads '", input_name(input), "', but the output of a ",
                               type_name(type),
                               " layer is a result; name another layer in \"inputs\""));
    }
  }
  return reader.ok() ? absl::OkStatus() : reader.finish();
}

void Parser::need_image(FieldReader& reader, const LayerSpec& layer) {
  if (layer.input_shape.size() != 3) {
    reader.fail(absl::StrCat(type_name(layer.type),
                             " needs an image channels x height x width, but ", input_phrase(layer),
                             " is not one"));
  }
}

void Parser::add_parameter(FieldReader& reader, LayerSpec& layer, std::string name, Shape shape) {
  if (!bounded_product(shape, kMaxTensorElements)) {
    reader.fail(absl::StrCat("its ", name, " ", shape_to_string(shape), " from ",
                             input_phrase(layer), " has more than ", kMaxTensorElements,
                             " elements"));
    return;
  }
  Initialiser initialiser;
  if (name == "bias") initialiser.type = Initialiser::Type::kConstant;
  layer.parameters.push_back({std::move(name), std::move(shape), initialiser});
}

void Parser::read_window(FieldReader& reader, LayerSpec& layer, bool stride_is_kernel) {
  std::tie(layer.kernel_h, layer.kernel_w) = reader.pair("kernel", 1, kMaxDimension);
  const std::pair<std::int64_t, std::int64_t> stride =
      stride_is_kernel ? std::pair{layer.kernel_h, layer.kernel_w}
                       : std::pair<std::int64_t, std::int64_t>{1, 1};
  std::tie(layer.stride_h, layer.stride_w) = reader.pair("stride", 1, kMaxDimension, stride);
  std::tie(layer.pad_h, layer.pad_w) =
      reader.pair("pad", 0, kMaxDimension, std::pair<std::int64_t, std::int64_t>{0, 0});
  if (!reader.ok()) return;
  need_image(reader, layer);
  if (!reader.ok()) return;
  if (layer.kernel_h > layer.input_shape[1] + 2 * layer.pad_h ||
      layer.kernel_w > layer.input_shape[2] + 2 * layer.pad_w) {
    reader.fail(absl::StrCat("kernel ", layer.kernel_h, "x", layer.kernel_w, " is larger than ",
                             input_phrase(layer), " padded by ", layer.pad_h, "x", layer.pad_w));
  } else if (layer.pad_h >= layer.kernel_h || layer.pad_w >= layer.kernel_w) {
    reader.fail(absl::StrCat("pad ", layer.pad_h, "x", layer.pad_w, " must be smaller than kernel ",
                             layer.kernel_h, "x", layer.kernel_w,
                             ": windows of padding alone mean nothing"));
  }
}

void Parser::infer_convolution(FieldReader& reader, LayerSpec& layer) {
  const std::int64_t outputs = reader.integer("outputs", 1, kMaxDimension);
  layer.groups = reader.integer("groups", 1, kMaxDimension, 1);
  const bool bias = reader.boolean("bias", true);
  read_window(reader, layer, false);
  if (!reader.ok()) return;
  const std::int64_t channels = layer.input_shape[0];
  if (channels % layer.groups != 0 || outputs % layer.groups != 0) {
    reader.fail(absl::StrCat("groups ", layer.groups, " must divide both its ", outputs,
                             " outputs and the channels of ", input_phrase(layer)));
    return;
  }
  const auto extent = [](std::int64_t size, std::int64_t kernel, std::int64_t stride,
                         std::int64_t pad) { return (size + 2 * pad - kernel) / stride + 1; };
  layer.output_shape = {outputs,
                        extent(layer.input_shape[1], layer.kernel_h, layer.stride_h, layer.pad_h),
                        extent(layer.input_shape[2], layer.kernel_w, layer.stride_w, layer.pad_w)};
  add_parameter(reader, layer, "weight",
                {outputs, channels / layer.groups, layer.kernel_h, layer.kernel_w});
  if (bias) add_parameter(reader, layer, "bias", {outputs});
  if (!reader.ok()) return;
  const std::int64_t macs[] = {element_count(layer.parameters.front().shape), layer.output_shape[1],
                               layer.output_shape[2]};
  if (const auto product = bounded_product(macs, kMaxLayerMultiplyAdds)) {
    layer.multiply_adds = *product;
  } else {
    reader.fail(absl::StrCat("more than ", kMaxLayerMultiplyAdds, " multiply-adds per sample on ",
                             input_phrase(layer)));
  }
}

void Parser::infer_pooling(FieldReader& reader, LayerSpec& layer) {
  const std::string pool = reader.string("pool");
  layer.ceil_mode = reader.boolean("ceil_mode", false);
  if (reader.ok() && pool != "max" && pool != "average") {
    reader.fail(absl::StrCat("\"pool\" must be \"max\" or \"average\", got ", json_excerpt(pool)));
  }
  layer.pool = pool == "max" ? LayerSpec::Pool::kMax : LayerSpec::Pool::kAverage;
  read_window(reader, layer, true);
  if (!reader.ok()) return;
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

void Parser::infer_scores(FieldReader& reader, LayerSpec& layer) {
  const std::int64_t classes = element_count(layer.input_shape);
  if (classes != layer.input_shape.front()) {
    reader.fail(absl::StrCat(type_name(layer.type), " needs one score per class, shape ", classes,
                             ", but ", input_phrase(layer),
                             " is an image; put a fully_connected layer between"));
    return;
  }
  if (classes < 2) {
    reader.fail(absl::StrCat(type_name(layer.type), " needs two or more classes, but ",
                             input_phrase(layer), " has one"));
    return;
  }
  layer.output_shape = {1};
  if (layer.type == LayerType::kSoftmaxCrossEntropy) net_.classes = classes;
}

void Parser::infer_add(FieldReader& reader, LayerSpec& layer) {
  for (const std::size_t input : layer.inputs) {
    if (shape_of(input) == layer.input_shape) continue;
    reader.fail(absl::StrCat("cannot add shape ", shape_to_string(shape_of(input)), " (from '",
                             input_name(input), "') to ", input_phrase(layer)));
    return;
  }
  layer.output_shape = layer.input_shape;
}

void Parser::read_options(FieldReader& reader, LayerSpec& layer) {
  layer.output_shape = layer.input_shape;
  switch (layer.type) {
    case LayerType::kConvolution:
      infer_convolution(reader, layer);
      break;
    case LayerType::kPooling:
      infer_pooling(reader, layer);
      break;
    case LayerType::kFullyConnected: {
      const std::int64_t outputs = reader.integer("outputs", 1, kMaxDimension);
      const bool bias = reader.boolean("bias", true);
      const std::int64_t inputs = element_count(layer.input_shape);
      layer.output_shape = {outputs};
      add_parameter(reader, layer, "weight", {outputs, inputs});
      if (bias) add_parameter(reader, layer, "bias", {outputs});
      layer.multiply_adds = reader.ok() ? outputs * inputs : 0;
      break;
    }
    case LayerType::kRelu:
      break;
    case LayerType::kLrn:
      layer.local_size = reader.integer("local_size", 1, kMaxDimension, layer.local_size);
      layer.alpha = reader.number("alpha", 0.0, kMaxInitialiser, layer.alpha);
      layer.beta = reader.number("beta", 0.0, kMaxInitialiser, layer.beta);
      layer.k = reader.number("k", 1e-6, kMaxInitialiser, layer.k);
      if (layer.local_size % 2 == 0) {
        reader.fail(absl::StrCat("\"local_size\" must be odd, got ", layer.local_size));
      }
      need_image(reader, layer);
      break;
    case LayerType::kDropout:
      // Below 1 by more than a rounding error of float: 1 / (1 - ratio) must stay finite.
      layer.dropout_ratio = reader.number("ratio", 0.0, 0.999, layer.dropout_ratio);
      break;
    case LayerType::kSoftmaxCrossEntropy:
    case LayerType::kAccuracy:
      infer_scores(reader, layer);
      break;
    case LayerType::kAdd:
      infer_add(reader, layer);
      break;
  }
  if (reader.ok() && !bounded_product(layer.output_shape, kMaxTensorElements)) {
    reader.fail(absl::StrCat("its output shape ", shape_to_string(layer.output_shape), " from ",
                             input_phrase(layer), " has more than ", kMaxTensorElements,
                             " elements"));
  }
}

void Parser::read_parameters(FieldReader& reader, LayerSpec& layer) {
  if (layer.parameters.empty()) return;
  const nlohmann::json* init = reader.object("init");
  if (init == nullptr) return;
  FieldReader fields(*init, absl::StrCat(reader.where(), ": init"));
  absl::Status status;
  for (ParameterSpec& parameter : layer.parameters) {
    const nlohmann::json* json = fields.object(parameter.name);
    if (json == nullptr) continue;
    status.Update(parse_initialiser(
        *json, absl::StrCat(reader.where(), ": init of ", parameter.name), parameter.initialiser));
  }
  status.Update(fields.finish());
  // Its message already says where; only the outermost reader may add a place.
  if (!status.ok()) {
    const std::string message(status.message());
    reader.fail(message.substr(std::min(message.size(), reader.where().size() + 2)));
  }
}

absl::Status Parser::parse_layer(const nlohmann::json& json, std::size_t index) {
  FieldReader reader(json, absl::StrCat(where_, ": layers[", index, "]"));
  LayerSpec layer;
  layer.name = read_name(reader);
  if (!reader.ok()) return reader.finish();
  reader.set_where(absl::StrCat(where_, ": layer '", layer.name, "'"));
  if (layer.name == kNetworkInputName) {
    reader.fail("this name is kept for the network's data; choose another");
  }
  if (index_by_name_.contains(layer.name)) {
    reader.fail("another layer has this name already; names must differ");
  }
  read_type(reader, layer);
  if (!reader.ok()) return reader.finish();
  POSEIDON_RETURN_IF_ERROR(read_inputs(reader, layer));
  layer.input_shape = shape_of(layer.inputs.front());
  read_options(reader, layer);
  read_parameters(reader, layer);
  POSEIDON_RETURN_IF_ERROR(reader.finish());
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

absl::StatusOr<NetSpec> Parser::parse(const nlohmann::json& json) {
  FieldReader reader(json, "network");
  net_.name = read_name(reader);
  where_ = absl::StrCat("network '", net_.name, "'");
  if (reader.ok()) reader.set_where(where_);
  net_.input_shape = reader.integers("input", 1, 3, 1, kMaxDimension);
  if (reader.ok() && net_.input_shape.size() == 2) {
    reader.fail(absl::StrCat("\"input\" must be [features] or [channels, height, width], got ",
                             shape_to_string(net_.input_shape)));
  }
  if (reader.ok() && !bounded_product(net_.input_shape, kMaxTensorElements)) {
    reader.fail(absl::StrCat("\"input\" ", shape_to_string(net_.input_shape), " has more than ",
                             kMaxTensorElements, " elements"));
  }
  const nlohmann::json* layers = reader.array("layers");
  POSEIDON_RETURN_IF_ERROR(reader.finish());
  if (layers->empty() || layers->size() > kMaxLayers) {
    reader.fail(absl::StrCat("needs 1 to ", kMaxLayers, " layers, has ", layers->size()));
    return reader.finish();
  }
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
  net_.source = json;
  return std::move(net_);
}

}  // namespace

absl::StatusOr<NetSpec> parse_network(const nlohmann::json& json) { return Parser().parse(json); }

}  // namespace poseidon
