// A network file, from its text to all shapes, repetition and derivation included.

#include "common/base/check.h"
#include "common/files/json_fields.h"
#include "common/job/declared_model.h"
#include "models/net/model_layout.h"
#include "models/net/model_tensors.h"
#include "models/net/net.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poseidon;
  const auto json = parse_json(fuzz::Input(data, size).rest(), "network file",
                               {.max_bytes = kMaxNetworkFileBytes});
  if (!json.ok() || !json->is_object()) return 0;
  // Nor is what a path names read: derived are shipped networks alone.
  const auto base = json->find("network");
  if (base != json->end() && base->is_string() &&
      base->get_ref<const std::string&>().find_first_of("/.") != std::string::npos) {
    return 0;
  }
  if (is_declared_model(*json)) {
    const auto layout = parse_declared_model(*json);
    if (!layout.ok()) return 0;
    POSEIDON_CHECK(layout_difference(*layout, *layout).empty(), "a model is as itself");
    for (const LayoutLayer& layer : layout->layers) {
      POSEIDON_CHECK(layer.parameter_count() > 0 && layer.parameter_count() <= kMaxTensorElements,
                     "every layer has a size");
    }
    POSEIDON_CHECK(layout->statistics_count() <= kMaxTensorElements, "and so has the state");
    (void)model_tensors(*layout);
    return 0;
  }
  const auto net = resolve_network(*json, "");
  if (!net.ok()) return 0;
  POSEIDON_CHECK(net->layers.size() <= kMaxLayers, "the bound holds");
  for (const LayerSpec& layer : net->layers) {
    POSEIDON_CHECK(element_count(layer.output_shape) > 0 &&
                       element_count(layer.output_shape) <= kMaxTensorElements,
                   "every tensor has a size");
    (void)shape_to_string(layer.input_shape);
  }
  POSEIDON_CHECK(net->parameter_count() >= 0 && net->multiply_adds() >= 0, "no sum overflows");
  (void)statistic_places(*net);
  return 0;
}
