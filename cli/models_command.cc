#include "cli/models_command.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/progress.h"
#include "cli/status_format.h"

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

std::string network_to_text(const NetSpec& net) {
  std::vector<std::vector<std::string>> table = {{"LAYER", "TYPE", "OUTPUT", "PARAMETERS"}};
  for (const LayerSpec& layer : net.layers) {
    table.push_back({layer.name, std::string(layer_type_name(layer.type)),
                     shape_to_string(layer.output_shape), format_count(layer.parameter_count())});
  }
  return absl::StrCat(net.name, ": input ", shape_to_string(net.input_shape), ", ", net.classes,
                      " classes, ", format_count(net.parameter_count()), " parameters, ",
                      format_count(net.multiply_adds()), " multiply-adds per image (forward)\n\n",
                      format_table(table));
}

}  // namespace poseidon
