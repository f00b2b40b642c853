#include "common/plan/calibration.h"

#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/json_fields.h"

namespace poseidon {
namespace {

absl::Status check(double value, bool zero_allowed, std::string_view source,
                   const std::string& key) {
  if (std::isfinite(value) && (zero_allowed ? value >= 0.0 : value > 0.0)) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat(source, ": calibration.", key, " is ", value,
                                            "; it must be ",
                                            zero_allowed ? "at least 0" : "above 0"));
}

nlohmann::ordered_json nics_to_json(const std::vector<NicSpeed>& nics) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const NicSpeed& nic : nics) {
    json.push_back({{"send_bytes_per_s", nic.send_bytes_per_s},
                    {"receive_bytes_per_s", nic.receive_bytes_per_s}});
  }
  return json;
}

}  // namespace

absl::Status validate(const Calibration& calibration, std::string_view source) {
  const auto speed = [&](double value, const std::string& key) {
    return check(value, false, source, key);
  };
  POSEIDON_RETURN_IF_ERROR(speed(calibration.device_ops_per_s, "device_ops_per_s"));
  POSEIDON_RETURN_IF_ERROR(speed(calibration.server_sum_bytes_per_s, "server_sum_bytes_per_s"));
  POSEIDON_RETURN_IF_ERROR(check(calibration.latency_s, true, source, "latency_seconds"));
  for (const auto& [key, nics] :
       {std::pair("workers", &calibration.workers), {"servers", &calibration.servers}}) {
    for (std::size_t i = 0; i < nics->size(); ++i) {
      const std::string path = absl::StrCat(key, "[", i, "].");
      POSEIDON_RETURN_IF_ERROR(speed((*nics)[i].send_bytes_per_s, path + "send_bytes_per_s"));
      POSEIDON_RETURN_IF_ERROR(speed((*nics)[i].receive_bytes_per_s, path + "receive_bytes_per_s"));
    }
  }
  for (const LayerTimes& layer : calibration.layers) {
    const std::string path = absl::StrCat("layers.", layer.name, ".");
    POSEIDON_RETURN_IF_ERROR(check(layer.forward_s, true, source, path + "forward_seconds"));
    POSEIDON_RETURN_IF_ERROR(check(layer.backward_s, true, source, path + "backward_seconds"));
  }
  return absl::OkStatus();
}

nlohmann::ordered_json calibration_to_json(const Calibration& calibration) {
  nlohmann::ordered_json json = {{"measured", calibration.measured},
                                 {"device_ops_per_s", calibration.device_ops_per_s},
                                 {"server_sum_bytes_per_s", calibration.server_sum_bytes_per_s},
                                 {"latency_seconds", calibration.latency_s},
                                 {"workers", nics_to_json(calibration.workers)},
                                 {"servers", nics_to_json(calibration.servers)},
                                 {"layers", nlohmann::ordered_json::array()}};
  for (const LayerTimes& layer : calibration.layers) {
    json["layers"].push_back({{"name", layer.name},
                              {"forward_seconds", layer.forward_s},
                              {"backward_seconds", layer.backward_s}});
  }
  return json;
}

}  // namespace poseidon
