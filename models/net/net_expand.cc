#include "models/net/net_expand.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/base/nearest.h"
#include "common/files/json_fields.h"
#include "models/net/net.h"
#include "models/net/net_layer_names.h"
#include "models/net/net_names.h"

namespace poseidon {
namespace {

using nlohmann::json;
using Bindings = std::map<std::string, json>;
using TextRewriter = std::function<absl::StatusOr<json>(const std::string&)>;

/// Members that are gone once the layers are a plain list.
constexpr std::string_view kExpandedKeys[] = {"layers", "blocks", "defaults", "parameters"};

/// The approximate size of a JSON value, for the limit on the whole network.
constexpr std::size_t kNodeBytes = 16;

struct Block {
  std::string title;    // "block 'residual'" or "the network", for messages
  Bindings parameters;  // and their defaults: null where there is none
  const json* layers = nullptr;
  std::set<std::string> read;  // parameters that its layers mention
  bool is_used = false;
};

/// The context of a list of layers: the meaning of its names, and the place of its layers.
struct Scope {
  std::string source;                          // "network 'x': block 'y'", for messages
  std::string prefix;                          // of names: "" or "layer1.0."
  std::string input;                           // the meaning of "input" here
  std::string previous;                        // the layer before
  std::map<std::string, std::string> outputs;  // name here -> layer that has the output
  std::vector<std::string> blocks;             // that this list is inside of, outermost first

  bool is_block() const { return !blocks.empty(); }
};

bool has_key(const json& value, const char* key) {
  return value.is_object() && value.find(key) != value.end();
}

const std::string* text_at(const json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || it == object.end()) return nullptr;
  return it->get_ptr<const json::string_t*>();
}

std::size_t weight_of(const json& value) {
  std::size_t weight = kNodeBytes;
  if (const auto* text = value.get_ptr<const json::string_t*>()) weight += text->size();
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) weight += key.size() + weight_of(member);
  } else if (value.is_array()) {
    for (const json& element : value) weight += weight_of(element);
  }
  return weight;
}

/// Whether a default contradicts the layer's own members: a window for a global pooling.
bool means_nothing(const std::string& type, const std::string& key, const json& layer,
                   const json& defaults) {
  if (type != "pooling") return false;
  const std::string* own = text_at(layer, "pool");
  const std::string* pool = own != nullptr ? own : text_at(defaults, "pool");
  if (key == "count_padding" && pool != nullptr && *pool == "max") return true;
  const auto global = layer.find("global");
  const bool is_global = global != layer.end() && global->is_boolean() && global->get<bool>();
  return is_global && (key == "kernel" || key == "stride" || key == "pad" || key == "ceil_mode" ||
                       key == "count_padding");
}

std::vector<std::string> names_of(const auto& named) {
  std::vector<std::string> names;
  for (const auto& entry : named) names.push_back(entry.first);
  return names;
}

// Works on one network file; `layers_` grows.
class Expander {
 public:
  Expander(const json& file, const std::string& where) : file_(file), where_(where) {}
  absl::StatusOr<json> expand();

 private:
  /// A layer entry that names a block.
  struct BlockUse {
    std::string name;
    std::string block;
    std::string input;  // flat name
    Bindings bindings;
  };

  absl::Status read_blocks();
  static void read_parameters(JsonFields& fields, Block& block);
  absl::Status read_block(const std::string& name, const json& value);
  absl::Status read_network(const json& layers);
  absl::Status read_defaults();
  absl::Status expand_list(const json& layers, const std::string& path, Scope& scope);
  absl::Status expand_filled(Block& block, const Bindings& bindings, Scope& scope);
  absl::Status expand_entry(const json& entry, const std::string& path, Scope& scope);
  absl::Status expand_repeat(const json& entry, const std::string& path, Scope& scope);
  absl::Status expand_block(const json& entry, const std::string& path, Scope& scope);
  absl::Status expand_layer(const json& entry, const std::string& path, Scope& scope);
  absl::Status check_nesting(const std::string& block, const Scope& scope) const;
  absl::StatusOr<BlockUse> read_use(const json& entry, const std::string& place,
                                    const Scope& scope);
  static absl::StatusOr<Bindings> bind(const Block& block, const json* with, JsonFields& fields,
                                       const std::string& name);
  static absl::StatusOr<std::string> resolve(const std::string& name, const std::string& place,
                                             const Scope& scope);
  absl::StatusOr<json> rewrite(const json& value, const TextRewriter& rewriter);
  static absl::StatusOr<json> fill_in(const std::string& text, Block& block,
                                      const Bindings& bindings, const std::string& place);
  absl::Status charge(std::size_t bytes);
  absl::Status check_all_used() const;
  absl::Status check_all_read(const Block& block) const;

  absl::Status refuse(const std::string& message) const {
    return absl::InvalidArgumentError(absl::StrCat(where_, ": ", message));
  }

  const json& file_;
  const std::string& where_;
  std::map<std::string, Block> blocks_;
  Block network_;                                // the file itself: its parameters, its layers
  std::map<std::string, const json*> defaults_;  // by layer type
  std::set<std::string> defaults_used_;
  std::set<std::string> layer_names_, use_names_;  ///< with the blocks around them
  json layers_ = json::array();
  std::size_t expanded_bytes_ = 0;
};

absl::Status Expander::charge(std::size_t bytes) {
  expanded_bytes_ += bytes;
  if (expanded_bytes_ <= kMaxExpandedBytes) return absl::OkStatus();
  return refuse(absl::StrCat("its blocks grow to more than ", kMaxExpandedBytes,
                             " bytes; repeat less, or smaller layers"));
}

absl::StatusOr<json> Expander::rewrite(const json& value, const TextRewriter& rewriter) {
  POSEIDON_RETURN_IF_ERROR(charge(kNodeBytes));
  if (const auto* text = value.get_ptr<const json::string_t*>()) {
    POSEIDON_ASSIGN_OR_RETURN(json result, rewriter(*text));
    POSEIDON_RETURN_IF_ERROR(charge(weight_of(result)));
    return result;
  }
  if (value.is_object()) {
    json result = json::object();
    for (const auto& [key, member] : value.items()) {
      POSEIDON_RETURN_IF_ERROR(charge(key.size()));
      POSEIDON_ASSIGN_OR_RETURN(result[key], rewrite(member, rewriter));
    }
    return result;
  }
  if (value.is_array()) {
    json result = json::array();
    for (const json& element : value) {
      POSEIDON_ASSIGN_OR_RETURN(json written, rewrite(element, rewriter));
      result.push_back(std::move(written));
    }
    return result;
  }
  return value;
}

// ---- definitions in the file ----

void Expander::read_parameters(JsonFields& fields, Block& block) {
  const json* parameters = fields.value("parameters");
  if (parameters == nullptr) return;
  if (!parameters->is_object() || parameters->size() > kMaxBlockParameters) {
    fields.refuse("parameters",
                  absl::StrCat("expected an object {name: default, or null where it must be ",
                               "given} of at most ", kMaxBlockParameters, ", got ",
                               json_excerpt(*parameters)));
    return;
  }
  for (const auto& [key, standard] : parameters->items()) block.parameters[key] = standard;
}

absl::Status Expander::read_block(const std::string& name, const json& value) {
  Block block;
  block.title = absl::StrCat("block '", name, "'");
  JsonFields fields(value, absl::StrCat(where_, ": ", block.title), "");
  fields.require("layers");
  block.layers = fields.array("layers", "layers", 1, kMaxLayers);
  read_parameters(fields, block);
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  blocks_.emplace(name, std::move(block));
  return absl::OkStatus();
}

absl::Status Expander::read_blocks() {
  if (!has_key(file_, "blocks")) return absl::OkStatus();
  const json& blocks = file_["blocks"];
  if (!blocks.is_object() || blocks.size() > kMaxBlocks) {
    return refuse(absl::StrCat("blocks: expected an object {name: block} of at most ", kMaxBlocks,
                               ", got ", json_excerpt(blocks)));
  }
  for (const auto& [name, value] : blocks.items()) {
    if (!is_good_name(name)) {
      return refuse(absl::StrCat("blocks: a name has 1 to ", kMaxNameLength,
                                 " letters, digits or any of _ - . /, got ", json_excerpt(name)));
    }
    POSEIDON_RETURN_IF_ERROR(read_block(name, value));
  }
  return absl::OkStatus();
}

absl::Status Expander::read_network(const json& layers) {
  network_.title = "the network";
  network_.layers = &layers;
  JsonFields fields(file_, where_, "");
  read_parameters(fields, network_);
  for (const auto& [name, value] : network_.parameters) {
    if (!value.is_null()) continue;
    fields.refuse(absl::StrCat("parameters.", name),
                  "has no default: give it one, or a value in the \"with\" of another network "
                  "that names this one as its \"network\"");
  }
  return fields.status();
}

absl::Status Expander::read_defaults() {
  if (!has_key(file_, "defaults")) return absl::OkStatus();
  const json& defaults = file_["defaults"];
  JsonFields fields(defaults, where_, "defaults");
  for (const auto& entry : kLayerTypeNames) {
    const std::string type(entry.first);
    const json* value = fields.value(type);
    if (value == nullptr) continue;
    if (!value->is_object()) {
      fields.refuse(type, absl::StrCat("expected an object {...}, got ", json_excerpt(*value)));
    }
    for (const char* key : {"name", "type", "inputs"}) {
      if (has_key(*value, key)) fields.refuse(type, absl::StrCat("\"", key, "\" has no default"));
    }
    defaults_.emplace(type, value);
  }
  return fields.finish();
}

// An unused block or parameter is usually a mistake.
absl::Status Expander::check_all_used() const {
  for (const auto& [name, block] : blocks_) {
    if (!block.is_used) return refuse(absl::StrCat(block.title, ": no layer uses it; remove it"));
    POSEIDON_RETURN_IF_ERROR(check_all_read(block));
  }
  POSEIDON_RETURN_IF_ERROR(check_all_read(network_));
  for (const auto& entry : defaults_) {
    if (!defaults_used_.contains(entry.first)) {
      return refuse(absl::StrCat("defaults.", entry.first, ": no layer has this type; remove it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Expander::check_all_read(const Block& block) const {
  for (const auto& entry : block.parameters) {
    if (block.read.contains(entry.first)) continue;
    return refuse(absl::StrCat(block.title, ": no layer reads its parameter \"", entry.first,
                               "\" (as \"$", entry.first, "\"); remove it"));
  }
  return absl::OkStatus();
}

// ---- layers ----

absl::StatusOr<std::string> Expander::resolve(const std::string& name, const std::string& place,
                                              const Scope& scope) {
  if (name == kInputName) return scope.input;
  const auto it = scope.outputs.find(name);
  if (it != scope.outputs.end()) return it->second;
  if (!scope.is_block()) return name;
  return absl::InvalidArgumentError(absl::StrCat(
      place, ": unknown input ", json_excerpt(name), did_you_mean(name, names_of(scope.outputs)),
      "; a layer of a block reads earlier layers of the block, or \"input\": the block's input"));
}

absl::Status Expander::expand_layer(const json& entry, const std::string& path, Scope& scope) {
  if (layers_.size() >= kMaxLayers) {
    return refuse(absl::StrCat("layers: its blocks give more than ", kMaxLayers, " layers"));
  }
  const std::string* name = text_at(entry, "name");
  if (!entry.is_object() || name == nullptr) {
    if (scope.is_block()) {
      return absl::InvalidArgumentError(absl::StrCat(scope.source, ": ", path,
                                                     ": expected a layer {\"name\": ...}, got ",
                                                     json_excerpt(entry)));
    }
    layers_.push_back(entry);
    return absl::OkStatus();
  }
  const std::string flat_name = scope.prefix + *name;
  const std::string place = absl::StrCat(scope.source, ": layer '", flat_name, "'");
  if (use_names_.contains(flat_name)) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": a block stands under this name; names must differ"));
  }
  layer_names_.insert(flat_name);
  json layer = entry;
  layer["name"] = flat_name;
  if (!has_key(layer, "inputs")) {
    if (scope.is_block()) layer["inputs"] = {scope.previous};
  } else if (layer["inputs"].is_array()) {
    for (json& input : layer["inputs"]) {
      if (!input.is_string()) continue;
      POSEIDON_ASSIGN_OR_RETURN(input, resolve(input.get<std::string>(), place, scope));
    }
  }
  const std::string* type = text_at(layer, "type");
  const auto standard = type == nullptr ? defaults_.end() : defaults_.find(*type);
  if (standard != defaults_.end()) {
    POSEIDON_RETURN_IF_ERROR(charge(weight_of(*standard->second)));
    defaults_used_.insert(*type);
    for (const auto& [key, value] : standard->second->items()) {
      if (!means_nothing(*type, key, layer, *standard->second)) layer.emplace(key, value);
    }
  }
  scope.outputs.emplace(*name, flat_name);
  scope.previous = flat_name;
  layers_.push_back(std::move(layer));
  return absl::OkStatus();
}

absl::Status Expander::expand_repeat(const json& entry, const std::string& path, Scope& scope) {
  JsonFields fields(entry, scope.source, path);
  std::vector<std::int64_t> range;
  fields.integers("repeat", &range, 0, kMaxLayers, 2, 2);
  fields.require("layers");
  const json* layers = fields.array("layers", "layers", 1, kMaxLayers);
  if (fields.ok() && range[0] > range[1]) {
    fields.refuse("repeat", absl::StrCat("expected [first, last] number, got [", range[0], ",",
                                         range[1], "]"));
  }
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  for (const json& layer : *layers) {
    if (!has_key(layer, "repeat")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(scope.source, ": ", path,
                     ": a repeat inside a repeat; put the inner one into a block of its own"));
  }
  for (std::int64_t number = range[0]; number <= range[1]; ++number) {
    const auto write_number = [&](const std::string& text) -> absl::StatusOr<json> {
      return json(absl::StrReplaceAll(text, {{"#", absl::StrCat(number)}}));
    };
    POSEIDON_ASSIGN_OR_RETURN(const json copy, rewrite(*layers, write_number));
    POSEIDON_RETURN_IF_ERROR(expand_list(copy, path + ".layers", scope));
  }
  return absl::OkStatus();
}

absl::StatusOr<Bindings> Expander::bind(const Block& block, const json* with, JsonFields& fields,
                                        const std::string& name) {
  Bindings bindings = block.parameters;
  if (with != nullptr) {
    JsonFields values(*with, fields.source(), fields.path_of("with"));
    for (auto& [parameter, value] : bindings) {
      const json* given = values.value(parameter);
      if (given == nullptr) continue;
      value = *given;
    }
    fields.add(values.finish());
  }
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  for (const auto& [parameter, value] : bindings) {
    if (!value.is_null()) continue;
    fields.refuse(
        "with", absl::StrCat("block '", name, "' needs \"", parameter, "\", which has no default"));
  }
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  return bindings;
}

absl::StatusOr<json> Expander::fill_in(const std::string& text, Block& block,
                                       const Bindings& bindings, const std::string& place) {
  if (text.empty() || text.front() != '$') return json(text);
  const std::string parameter = text.substr(1);
  const auto it = bindings.find(parameter);
  if (it == bindings.end()) {
    const std::vector<std::string> known = names_of(block.parameters);
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": ", json_excerpt(text), " is no parameter of ", block.title,
                     did_you_mean(parameter, known), ", which has ",
                     known.empty() ? "none" : absl::StrJoin(known, ", ")));
  }
  block.read.insert(parameter);
  return it->second;
}

absl::Status Expander::check_nesting(const std::string& block, const Scope& scope) const {
  for (const std::string& outer : scope.blocks) {
    if (outer != block) continue;
    return refuse(absl::StrCat("block '", block, "' contains itself (",
                               absl::StrJoin(scope.blocks, ", "), ", ", block, ")"));
  }
  if (scope.blocks.size() < kMaxBlockDepth) return absl::OkStatus();
  return refuse(absl::StrCat("block '", block, "': more than ", kMaxBlockDepth,
                             " blocks inside each other (", absl::StrJoin(scope.blocks, ", "),
                             ")"));
}

absl::StatusOr<Expander::BlockUse> Expander::read_use(const json& entry, const std::string& place,
                                                      const Scope& scope) {
  JsonFields fields(entry, place, "");
  BlockUse use;
  std::vector<std::string> inputs;
  fields.require("name");
  fields.string("name", &use.name);
  if (blocks_.empty()) fields.refuse("block", "the network has no \"blocks\"");
  fields.one_of("block", &use.block, names_of(blocks_));
  fields.strings("inputs", &inputs, 1, 1);
  const json* with = fields.value("with");
  if (!fields.ok()) return fields.finish();
  const std::string flat_name = scope.prefix + use.name;
  if (!is_good_name(use.name) || use.name == kInputName || layer_names_.contains(flat_name) ||
      !use_names_.insert(flat_name).second) {
    fields.refuse("name",
                  absl::StrCat("expected 1 to ", kMaxNameLength,
                               " letters, digits or any of _ - . /, a name that no other layer ",
                               "has, and not \"input\"; got ", json_excerpt(use.name)));
  }
  POSEIDON_RETURN_IF_ERROR(check_nesting(use.block, scope));
  POSEIDON_ASSIGN_OR_RETURN(use.bindings, bind(blocks_.at(use.block), with, fields, use.block));
  use.input = scope.previous;
  if (!inputs.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(use.input, resolve(inputs.front(), place, scope));
  }
  return use;
}

absl::Status Expander::expand_block(const json& entry, const std::string& path, Scope& scope) {
  const std::string place = absl::StrCat(scope.source, ": ", place_of(entry, "layer", path));
  POSEIDON_ASSIGN_OR_RETURN(const BlockUse use, read_use(entry, place, scope));
  Block& block = blocks_.at(use.block);
  block.is_used = true;
  Scope inside{.source = absl::StrCat(where_, ": block '", use.block, "'"),
               .prefix = absl::StrCat(scope.prefix, use.name, "."),
               .input = use.input,
               .previous = use.input,
               .outputs = {},
               .blocks = scope.blocks};
  inside.blocks.push_back(use.block);
  POSEIDON_RETURN_IF_ERROR(expand_filled(block, use.bindings, inside));
  scope.outputs.emplace(use.name, inside.previous);
  scope.previous = inside.previous;
  return absl::OkStatus();
}

absl::Status Expander::expand_filled(Block& block, const Bindings& bindings, Scope& scope) {
  const TextRewriter fill = [&](const std::string& text) {
    return fill_in(text, block, bindings, scope.source);
  };
  for (std::size_t i = 0; i < block.layers->size(); ++i) {
    POSEIDON_ASSIGN_OR_RETURN(const json filled, rewrite((*block.layers)[i], fill));
    POSEIDON_RETURN_IF_ERROR(expand_entry(filled, absl::StrCat("layers[", i, "]"), scope));
  }
  return absl::OkStatus();
}

absl::Status Expander::expand_entry(const json& entry, const std::string& path, Scope& scope) {
  if (has_key(entry, "block")) return expand_block(entry, path, scope);
  if (has_key(entry, "repeat")) return expand_repeat(entry, path, scope);
  return expand_layer(entry, path, scope);
}

absl::Status Expander::expand_list(const json& layers, const std::string& path, Scope& scope) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    POSEIDON_RETURN_IF_ERROR(expand_entry(layers[i], absl::StrCat(path, "[", i, "]"), scope));
  }
  return absl::OkStatus();
}

absl::StatusOr<json> Expander::expand() {
  const auto layers = file_.is_object() ? file_.find("layers") : file_.end();
  if (!file_.is_object() || layers == file_.end() || !layers->is_array() ||
      layers->size() > kMaxLayers) {
    return file_;
  }
  POSEIDON_RETURN_IF_ERROR(read_blocks());
  POSEIDON_RETURN_IF_ERROR(read_defaults());
  POSEIDON_RETURN_IF_ERROR(read_network(*layers));
  Scope scope{.source = where_,
              .prefix = "",
              .input = kInputName,
              .previous = kInputName,
              .outputs = {},
              .blocks = {}};
  POSEIDON_RETURN_IF_ERROR(has_key(file_, "parameters")
                               ? expand_filled(network_, network_.parameters, scope)
                               : expand_list(*layers, "layers", scope));
  POSEIDON_RETURN_IF_ERROR(check_all_used());
  json result = json::object();
  for (const auto& [key, value] : file_.items()) {
    if (std::ranges::count(kExpandedKeys, key) == 0) result[key] = value;
  }
  result["layers"] = std::move(layers_);
  return result;
}

}  // namespace

absl::StatusOr<nlohmann::json> expand_network(const nlohmann::json& file,
                                              const std::string& where) {
  return Expander(file, where).expand();
}

}  // namespace poseidon
