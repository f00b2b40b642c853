#include "models/net/net_initialiser.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/files/json_fields.h"

namespace poseidon {
namespace {

constexpr double kMaxInitialiser = 1e6;

}  // namespace

absl::Status parse_initialiser(const nlohmann::json& json, std::string_view source,
                               std::string_view path, Initialiser& initialiser) {
  using Type = Initialiser::Type;
  using Fan = Initialiser::Fan;
  static const std::map<std::string, Type, std::less<>> kTypes = {
      {"constant", Type::kConstant},
      {"gaussian", Type::kGaussian},
      {"he", Type::kHe},
      {"truncated_gaussian", Type::kTruncatedGaussian},
      {"uniform", Type::kUniform},
      {"xavier", Type::kXavier}};
  static const std::map<std::string, Fan, std::less<>> kFans = {
      {"average", Fan::kAverage}, {"fan_in", Fan::kIn}, {"fan_out", Fan::kOut}};
  const auto names_of = [](const auto& map) {
    std::vector<std::string> names;
    for (const auto& entry : map) names.push_back(entry.first);
    return names;
  };
  JsonFields fields(json, source, path);
  std::string type;
  fields.require("type");
  fields.one_of("type", &type, names_of(kTypes));
  if (!fields.ok()) return fields.status();
  Initialiser read;
  read.type = kTypes.at(type);
  switch (read.type) {
    case Type::kConstant:
      fields.number("value", &read.value, {.min = -kMaxInitialiser, .max = kMaxInitialiser});
      break;
    case Type::kUniform:
      fields.number("bound", &read.bound, {.min = 0.0, .max = kMaxInitialiser});
      break;
    case Type::kGaussian:
    case Type::kTruncatedGaussian:
      fields.number("std", &read.std, {.min = 0.0, .max = kMaxInitialiser});
      break;
    case Type::kXavier:
    case Type::kHe: {
      std::string mode = "fan_in";
      fields.one_of("mode", &mode, names_of(kFans));
      read.fan = kFans.at(mode);
      break;
    }
  }
  if (fields.ok()) initialiser = read;
  return fields.finish();
}

}  // namespace poseidon
