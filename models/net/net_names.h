#pragma once

// Names in network files.
//
// Called by: net_expand.cc, net_parse.cc and model_layout.cc. Calls: common/files/json_fields.h.

#include <algorithm>
#include <string>
#include <string_view>

#include "common/base/text.h"
#include "common/files/json_fields.h"
#include "models/net/net.h"
#include "nlohmann/json.hpp"

namespace poseidon {

/// The name by which layers refer to their input: the network's, or, inside a block, the block's.
inline constexpr char kInputName[] = "input";

inline bool is_good_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameLength &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.' || c == '/';
         });
}

/// The required key "name".
inline std::string read_name(JsonFields& fields) {
  std::string name;
  fields.require("name");
  fields.string("name", &name);
  if (fields.ok() && !is_good_name(name)) {
    fields.refuse("name", str_cat("expected 1 to ", kMaxNameLength,
                                  " letters, digits or any of _ - . /, got ", json_excerpt(name)));
  }
  return name;
}

/// "network 'lenet'", or a substitute when the name is invalid.
inline std::string place_of(const nlohmann::json& json, std::string_view kind,
                            std::string_view unnamed) {
  const auto name = json.is_object() ? json.find("name") : json.end();
  if (!json.is_object() || name == json.end() || !name->is_string()) return std::string(unnamed);
  const auto text = name->get<std::string>();
  return is_good_name(text) ? str_cat(kind, " '", text, "'") : std::string(unnamed);
}

}  // namespace poseidon
