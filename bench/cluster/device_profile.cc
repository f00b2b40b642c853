#include "bench/cluster/device_profile.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/json_fields.h"

namespace poseidon::bench {
namespace {

constexpr std::size_t kMaxLayers = 10000;
constexpr std::int64_t kMaxBatchSize = 65536;
/// A layer takes less than an hour, a device less than 1e18 operations a second.
constexpr NumberRange kSeconds{.min = 0, .max = 3600};
constexpr NumberRange kRate{.min = 1, .max = 1e18};

absl::StatusOr<LayerProfile> parse_layer(const nlohmann::json& json, std::string_view source,
                                         std::size_t index) {
  LayerProfile layer;
  JsonFields fields(json, source, absl::StrCat("layers[", index, "]"));
  for (const char* key : {"name", "forward_s", "backward_s"}) fields.require(key);
  fields.string("name", &layer.name);
  fields.number("forward_s", &layer.forward_s, kSeconds);
  fields.number("backward_s", &layer.backward_s, kSeconds);
  fields.value("type");
  fields.value("tensors");
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  return layer;
}

}  // namespace

absl::StatusOr<DeviceProfile> parse_device_profile(std::string_view json, std::string_view source) {
  POSEIDON_ASSIGN_OR_RETURN(const nlohmann::json value, parse_json(json, source));
  DeviceProfile profile;
  JsonFields fields(value, source, "");
  for (const char* key :
       {"network", "device", "batch_size", "device_flops", "device_bytes_per_s", "layers"}) {
    fields.require(key);
  }
  fields.string("network", &profile.network);
  fields.string("device", &profile.device);
  fields.integer("batch_size", &profile.batch_size, 1, kMaxBatchSize);
  fields.number("device_flops", &profile.device_flops, kRate);
  fields.number("device_bytes_per_s", &profile.device_bytes_per_s, kRate);
  if (const nlohmann::json* layers = fields.array("layers", "layers", 1, kMaxLayers)) {
    for (std::size_t i = 0; i < layers->size(); ++i) {
      absl::StatusOr<LayerProfile> layer = parse_layer((*layers)[i], source, i);
      fields.add(layer.status());
      if (layer.ok()) profile.layers.push_back(*std::move(layer));
    }
  }
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  return profile;
}

absl::Status check_profile_fits(const DeviceProfile& profile, const NetSpec& net) {
  const std::vector<std::size_t> layers = net.parameter_layers();
  if (layers.size() != profile.layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the profile of ", profile.network, " has ", profile.layers.size(), " layers, network ",
        net.name, " has ", layers.size(), " with parameters: make a profile of this network"));
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const std::string& name = net.layers[layers[l]].name;
    if (profile.layers[l].name == name) continue;
    return absl::InvalidArgumentError(absl::StrCat("layer ", l, " of the profile of ",
                                                   profile.network, " is ", profile.layers[l].name,
                                                   ", of network ", net.name, " it is ", name));
  }
  return absl::OkStatus();
}

}  // namespace poseidon::bench
