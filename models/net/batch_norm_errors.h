#pragma once

// The errors, before a job or on a device, for batch normalisation that cannot be computed.
//
// Called by: the checks of a job and worker/engine. Calls: nothing.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/net/net.h"

namespace poseidon {

inline absl::Status too_few_for_batch_norm(const LayerSpec& layer) {
  return absl::InvalidArgumentError(absl::StrCat(
      "layer '", layer.name, "': batch normalisation on shape ", shape_to_string(layer.input_shape),
      " with one sample has one value per channel, which has no variance; let batch_size / ",
      "micro_batches be 2 or more"));
}

/// Checks that a network can be trained with `batch` samples at a time (batch_size /
/// micro_batches).
inline absl::Status check_batch_norms(const NetSpec& net, std::int64_t samples) {
  for (const LayerSpec& layer : net.layers) {
    if (layer.type == LayerType::kBatchNorm && samples == 1 &&
        element_count(layer.input_shape) == layer.input_shape.front()) {
      return too_few_for_batch_norm(layer);
    }
  }
  return absl::OkStatus();
}

}  // namespace poseidon
