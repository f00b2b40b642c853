#pragma once

// What every device says when batch normalisation cannot be computed.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/engine/net.h"

namespace poseidon {

inline absl::Status too_few_for_batch_norm(const LayerSpec& layer) {
  return absl::InvalidArgumentError(absl::StrCat(
      "layer '", layer.name, "': batch normalisation on shape ", shape_to_string(layer.input_shape),
      " with one sample has one value per channel, which has no variance; train with ",
      "a batch_size of 2 or more"));
}

}  // namespace poseidon
