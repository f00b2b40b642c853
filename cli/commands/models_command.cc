#include "cli/commands/models_command.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/status_format.h"
#include "common/base/text.h"

namespace poseidon {

nlohmann::json network_to_json(const NetSpec& net) {
  nlohmann::json json = {{"name", net.name},
                         {"parameters", net.parameter_count()},
                         {"multiply_adds", net.multiply_adds()},
                         {"input_shape", net.input_shape},
                         {"classes", net.classes},
                         {"layers", nlohmann::json::array()}};
  for (const LayerSpec& layer : net.layers) {
    json["layers"].push_back({{"name", layer.name},
                              {"type", layer_type_name(layer.type)},
                              {"parameters", layer.parameter_count()},
                              {"multiply_adds", layer.multiply_adds},
                              {"input_shape", layer.input_shape},
                              {"output_shape", layer.output_shape}});
  }
  return json;
}

namespace {

using Table = std::vector<std::vector<std::string>>;

// Most layers have neither parameters nor multiply-adds; the eye finds those that do.
std::string count_or_dash(std::int64_t count) { return count == 0 ? "-" : format_count(count); }

Table layer_table(const NetSpec& net) {
  Table table = {{"LAYER", "TYPE", "OUTPUT", "PARAMETERS", "MULTIPLY-ADDS"}};
  for (const LayerSpec& layer : net.layers) {
    table.push_back({layer.name, std::string(layer_type_name(layer.type)),
                     shape_to_string(layer.output_shape), count_or_dash(layer.parameter_count()),
                     count_or_dash(layer.multiply_adds)});
  }
  return table;
}

// In the order in which the types first come.
Table type_table(const NetSpec& net) {
  struct Sum {
    std::string type;
    std::int64_t layers = 0;
    std::int64_t parameters = 0;
    std::int64_t multiply_adds = 0;
  };
  std::vector<Sum> sums;
  for (const LayerSpec& layer : net.layers) {
    const std::string type(layer_type_name(layer.type));
    auto sum = std::ranges::find(sums, type, &Sum::type);
    if (sum == sums.end()) sum = sums.insert(sums.end(), {.type = type});
    sum->layers += 1;
    sum->parameters += layer.parameter_count();
    sum->multiply_adds += layer.multiply_adds;
  }
  Table table = {{"TYPE", "LAYERS", "PARAMETERS", "MULTIPLY-ADDS"}};
  for (const Sum& sum : sums) {
    table.push_back({sum.type, format_count(sum.layers), count_or_dash(sum.parameters),
                     count_or_dash(sum.multiply_adds)});
  }
  table.push_back({"all", format_count(static_cast<std::int64_t>(net.layers.size())),
                   format_count(net.parameter_count()), format_count(net.multiply_adds())});
  return table;
}

}  // namespace

std::string network_to_text(const NetSpec& net) {
  return absl::StrCat(printable(net.name), ": input ", shape_to_string(net.input_shape), ", ",
                      net.classes, " classes, ", format_count(net.parameter_count()),
                      " parameters, ", format_count(net.multiply_adds()),
                      " multiply-adds per image (forward)\n\n", format_table(layer_table(net)),
                      "\n", format_table(type_table(net)));
}

}  // namespace poseidon
