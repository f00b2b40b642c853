#include "models/net/net_derive.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/json_fields.h"
#include "models/net/net.h"
#include "models/net/net_names.h"

namespace poseidon {
namespace {

using nlohmann::json;

// The value of `key`, or an empty object; a base with another type there is refused when it is
// expanded.
json object_at(const json& file, const char* key) {
  const auto it = file.find(key);
  return it != file.end() && it->is_object() ? *it : json::object();
}

void set_parameters(JsonFields& fields, const json& with, json& result) {
  json parameters = object_at(result, "parameters");
  JsonFields values(with, fields.source(), "with");
  for (auto& [name, value] : parameters.items()) {
    const json* given = values.value(name);
    if (given != nullptr) value = *given;
  }
  fields.add(values.finish());
  result["parameters"] = std::move(parameters);
}

void add_blocks(JsonFields& fields, const json& more, json& result) {
  json blocks = object_at(result, "blocks");
  if (!more.is_object()) {
    fields.refuse("blocks", absl::StrCat("expected an object {...}, got ", json_excerpt(more)));
    return;
  }
  for (const auto& [name, block] : more.items()) {
    if (blocks.contains(name)) {
      fields.refuse("blocks", absl::StrCat("the network has a block ", json_excerpt(name),
                                           " already; choose another name"));
    }
    blocks[name] = block;
  }
  result["blocks"] = std::move(blocks);
}

}  // namespace

bool is_derived_network(const json& file) {
  return file.is_object() && file.find("network") != file.end();
}

absl::StatusOr<json> derive_network(const json& base, const json& derived) {
  JsonFields fields(derived, place_of(derived, "network", "network"), "");
  fields.value("network");  // which base this is
  json result = base;
  if (!base.is_object()) {
    fields.refuse("network", absl::StrCat("expected a network {...}, got ", json_excerpt(base)));
    return fields.finish();
  }
  for (const char* replaced : {"name", "input"}) {
    if (const json* value = fields.value(replaced)) result[replaced] = *value;
  }
  if (const json* with = fields.value("with")) set_parameters(fields, *with, result);
  if (const json* blocks = fields.value("blocks")) add_blocks(fields, *blocks, result);
  if (const json* more = fields.array("layers", "layers", 1, kMaxLayers)) {
    json& layers = result["layers"];
    if (layers.is_array()) layers.insert(layers.end(), more->begin(), more->end());
  }
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  return result;
}

}  // namespace poseidon
