#pragma once

// A device whose operators are timed, for the table of a network's layers: a decorator, so that the
// engine itself measures nothing.

#include <memory>
#include <string>
#include <vector>

#include "worker/engine/device.h"

namespace poseidon::bench {

/// Seconds that one layer's operator has taken since the times were last cleared.
struct LayerTime {
  std::string layer;
  std::string type;
  double forward_seconds = 0.0;
  double backward_seconds = 0.0;
};

/// By layer, in the order of the network. Outlives the device.
using LayerTimes = std::vector<LayerTime>;

std::unique_ptr<Device> make_timing_device(std::unique_ptr<Device> inner, LayerTimes* times);

}  // namespace poseidon::bench
