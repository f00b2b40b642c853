#pragma once

// The times of each layer of one network on a device, which an emulated device plays back. In real
// time; the emulation slows them down.
//
// Called by: device_timeline.h; bench/cluster/profiles.py writes the file. Calls:
// common/files/json_fields.h.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/net/net.h"

namespace poseidon::bench {

/// A parameter layer, and what computes after it up to the next one.
struct LayerProfile {
  std::string name;
  double forward_s = 0.0, backward_s = 0.0;  ///< of a whole batch
};

struct DeviceProfile {
  std::string network, device;  ///< for people
  std::int64_t batch_size = 0;
  double device_flops = 0.0;        ///< of the product that rebuilds a gradient from factors, per s
  double device_bytes_per_s = 0.0;  ///< of an optimizer step in the device's memory
  std::vector<LayerProfile> layers;  ///< in forward order
};

/// One JSON object with these fields; a layer's "type" and "tensors" are for other readers. Errors
/// begin with `source` and name key and value.
absl::StatusOr<DeviceProfile> parse_device_profile(std::string_view json, std::string_view source);

/// INVALID_ARGUMENT unless the profile's layers are the network's parameter layers.
absl::Status check_profile_fits(const DeviceProfile& profile, const NetSpec& net);

}  // namespace poseidon::bench
