// Network file to NetSpec: reads each layer strictly, then infers its shapes. models/README.md is
// the format's description for people; keep the two in step.

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/nearest.h"
#include "common/base/text.h"
#include "common/files/json_fields.h"
#include "models/net/net.h"
#include "models/net/net_expand.h"
#include "models/net/net_initialiser.h"
#include "models/net/net_layer_names.h"
#include "models/net/net_names.h"

namespace poseidon {
namespace {

constexpr double kMaxFactor = 1e6;  // of LRN's numbers and loss weights

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
  void read_global_window(JsonFields& fields, LayerSpec& layer);
  void infer_scores(JsonFields& fields, LayerSpec& layer);
  void read_loss(JsonFields& fields, LayerSpec& layer);
  void infer_add(JsonFields& fields, LayerSpec& layer);
  void infer_concat(JsonFields& fields, LayerSpec& layer);
  void infer_batch_norm(JsonFields& fields, LayerSpec& layer);
  void need_image(JsonFields& fields, const LayerSpec& layer);
  void add_parameter(JsonFields& fields, LayerSpec& layer, std::string name, Shape shape);
  absl::Status check_losses();
  absl::Status check_whole() const;
  void mark_train_only();

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
  const bool many = layer.type == LayerType::kAdd || layer.type == LayerType::kConcat;
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
  // With ceil_mode the only window may hang over, by less than one stride (as in PyTorch).
  const auto is_too_large = [&](std::int64_t size, std::int64_t kernel, std::int64_t stride,
                                std::int64_t pad) {
    return kernel >= size + 2 * pad + (layer.ceil_mode ? stride : 1);
  };
  if (is_too_large(layer.input_shape[1], layer.kernel_h, layer.stride_h, layer.pad_h) ||
      is_too_large(layer.input_shape[2], layer.kernel_w, layer.stride_w, layer.pad_w)) {
    fields.refuse(absl::StrCat("kernel ", layer.kernel_h, "x", layer.kernel_w, " is larger than ",
                               input_phrase(layer), " padded by ", layer.pad_h, "x", layer.pad_w));
  } else if (layer.type == LayerType::kPooling &&
             (layer.pad_h >= layer.kernel_h || layer.pad_w >= layer.kernel_w)) {
    fields.refuse(absl::StrCat("pad ", layer.pad_h, "x", layer.pad_w,
                               " must be smaller than kernel ", layer.kernel_h, "x", layer.kernel_w,
                               ": windows of padding alone have neither maximum nor average"));
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
  if (fields.has("count_padding") && pool == "max") {
    fields.refuse("count_padding", "is for average pooling; a maximum never takes padding");
  }
  fields.boolean("count_padding", &layer.count_padding);
  bool global = false;
  fields.boolean("global", &global);
  if (global) return read_global_window(fields, layer);
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
  // Places in a window are counted in 32 bits, and all that are read in 64.
  const std::int64_t window[] = {layer.kernel_h, layer.kernel_w};
  const std::int64_t reads[] = {layer.output_shape[0], layer.output_shape[1], layer.output_shape[2],
                                layer.kernel_h, layer.kernel_w};
  if (!bounded_product(window, std::numeric_limits<std::int32_t>::max())) {
    fields.refuse(absl::StrCat("kernel ", layer.kernel_h, "x", layer.kernel_w, " has more than ",
                               std::numeric_limits<std::int32_t>::max(), " places"));
  } else if (!bounded_product(reads, kMaxLayerMultiplyAdds)) {
    fields.refuse(absl::StrCat("more than ", kMaxLayerMultiplyAdds, " values read per sample on ",
                               input_phrase(layer)));
  }
}

// The window is the whole plane, so nothing about it is left to say.
void Parser::read_global_window(JsonFields& fields, LayerSpec& layer) {
  for (const char* key : {"kernel", "stride", "pad", "ceil_mode", "count_padding"}) {
    if (fields.value(key) != nullptr)
      fields.refuse(key, "has no meaning with \"global\": true; remove it");
  }
  if (!fields.ok()) return;
  need_image(fields, layer);
  if (!fields.ok()) return;
  layer.kernel_h = layer.stride_h = layer.input_shape[1];
  layer.kernel_w = layer.stride_w = layer.input_shape[2];
  layer.output_shape = {layer.input_shape[0], 1, 1};
}

void Parser::infer_scores(JsonFields& fields, LayerSpec& layer) {
  // First, because a member that was not read is reported as unknown, which would hide this error.
  if (layer.type == LayerType::kSoftmaxCrossEntropy) read_loss(fields, layer);
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
}

void Parser::read_loss(JsonFields& fields, LayerSpec& layer) {
  fields.number("loss_weight", &layer.loss_weight, {.min = 0.0, .max = kMaxFactor});
  fields.number("label_smoothing", &layer.label_smoothing,
                {.min = 0.0, .max = 1.0, .max_excluded = true});
  fields.boolean("auxiliary", &layer.auxiliary);
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

void Parser::infer_concat(JsonFields& fields, LayerSpec& layer) {
  std::int64_t channels = 0;
  for (const std::size_t input : layer.inputs) {
    const Shape& shape = shape_of(input);
    const bool fits = shape.size() == layer.input_shape.size() &&
                      std::equal(shape.begin() + 1, shape.end(), layer.input_shape.begin() + 1);
    if (!fits) {
      fields.refuse(absl::StrCat("cannot put shape ", shape_to_string(shape), " (from '",
                                 input_name(input), "') behind ", input_phrase(layer),
                                 ": height and width must be the same (vectors go with vectors)"));
      return;
    }
    channels += shape.front();
    layer.concat_channels.push_back(shape.front());
  }
  layer.output_shape.front() = channels;
  if (channels > kMaxDimension) {
    fields.refuse(absl::StrCat("makes ", channels, " channels, more than ", kMaxDimension));
  }
}

void Parser::infer_batch_norm(JsonFields& fields, LayerSpec& layer) {
  // Float32 computes with it: below the smallest normal number it would vanish.
  fields.number("epsilon", &layer.epsilon, {.min = 1e-30, .max = 1.0});
  fields.number("momentum", &layer.momentum, {.min = 0.0, .max = 1.0});
  const auto per_channel = [&](const char* name, double value) {
    Initialiser initialiser;
    initialiser.type = Initialiser::Type::kConstant;
    initialiser.value = value;
    return ParameterSpec{name, {layer.input_shape.front()}, initialiser};
  };
  layer.parameters = {per_channel("weight", 1.0), per_channel("bias", 0.0)};
  layer.statistics = {per_channel("running_mean", 0.0), per_channel("running_var", 1.0)};
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
      fields.number("alpha", &layer.alpha, {.min = 0.0, .max = kMaxFactor});
      fields.number("beta", &layer.beta, {.min = 0.0, .max = kMaxFactor});
      fields.number("k", &layer.k, {.min = 1e-6, .max = kMaxFactor});
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
    case LayerType::kConcat:
      infer_concat(fields, layer);
      break;
    case LayerType::kBatchNorm:
      infer_batch_norm(fields, layer);
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
  if (layer.type == LayerType::kConvolution || layer.type == LayerType::kFullyConnected ||
      layer.type == LayerType::kBatchNorm) {
    read_parameters(fields, layer);
  }
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  index_by_name_.emplace(layer.name, net_.layers.size());
  net_.layers.push_back(std::move(layer));
  return absl::OkStatus();
}

// One loss is the network's own; it says how many classes there are.
absl::Status Parser::check_losses() {
  int losses = 0, auxiliary = 0;
  for (const LayerSpec& layer : net_.layers) {
    if (layer.type != LayerType::kSoftmaxCrossEntropy) continue;
    ++(layer.auxiliary ? auxiliary : losses);
    if (!layer.auxiliary) net_.classes = element_count(layer.input_shape);
  }
  if (losses == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(where_, ": needs exactly one softmax_cross_entropy layer (the loss)",
                   " that is not \"auxiliary\": true, has ", losses,
                   auxiliary > 0 ? absl::StrCat(" besides ", auxiliary, " auxiliary") : ""));
}

absl::Status Parser::check_whole() const {
  const auto refuse = [&](auto&&... words) {
    return absl::InvalidArgumentError(absl::StrCat(where_, ": ", words...));
  };
  std::vector<bool> is_read(net_.layers.size(), false);
  int accuracies = 0;
  for (const LayerSpec& layer : net_.layers) {
    accuracies += layer.type == LayerType::kAccuracy ? 1 : 0;
    for (const std::size_t input : layer.inputs) {
      if (input != kNetworkInput && layer.type != LayerType::kAccuracy) is_read[input] = true;
    }
  }
  if (accuracies > 1) return refuse("may have one accuracy layer, has ", accuracies);
  for (std::size_t i = 0; i < net_.layers.size(); ++i) {
    const LayerSpec& layer = net_.layers[i];
    if (layer.type == LayerType::kSoftmaxCrossEntropy || layer.type == LayerType::kAccuracy) {
      if (element_count(layer.input_shape) == net_.classes) continue;
      return refuse("layer '", layer.name, "': its input shape ",
                    shape_to_string(layer.input_shape), " differs from the loss's ", net_.classes,
                    " classes");
    }
    if (!is_read[i]) {
      return refuse("layer '", layer.name, "': its output does not reach the loss, no layer reads ",
                    "it; name it in the \"inputs\" of another layer or remove it");
    }
  }
  if (net_.parameter_layers().empty()) return refuse("no layer has parameters: nothing to train");
  return absl::OkStatus();
}

// Tests need what the loss and the accuracy are computed from.
void Parser::mark_train_only() {
  std::vector<bool> needed(net_.layers.size(), false);
  for (std::size_t i = net_.layers.size(); i-- > 0;) {
    LayerSpec& layer = net_.layers[i];
    const bool is_result = layer.type == LayerType::kAccuracy ||
                           (layer.type == LayerType::kSoftmaxCrossEntropy && !layer.auxiliary);
    layer.train_only = !is_result && !needed[i];
    if (layer.train_only) continue;
    for (const std::size_t input : layer.inputs) {
      if (input != kNetworkInput) needed[input] = true;
    }
  }
}

absl::StatusOr<NetSpec> Parser::parse(const nlohmann::json& file) {
  where_ = place_of(file, "network", "network");
  POSEIDON_ASSIGN_OR_RETURN(const nlohmann::json json, expand_network(file, where_));
  JsonFields fields(json, where_, "");
  for (const char* expanded : {"blocks", "defaults", "parameters"}) fields.value(expanded);
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
  POSEIDON_RETURN_IF_ERROR(check_losses());
  POSEIDON_RETURN_IF_ERROR(check_whole());
  mark_train_only();
  net_.source = file;
  return std::move(net_);
}

}  // namespace

absl::StatusOr<NetSpec> parse_network(const nlohmann::json& json) { return Parser().parse(json); }

}  // namespace poseidon
