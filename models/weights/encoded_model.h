#pragma once

// A model's parameters and statistics as a safetensors file: tensors named
// <layer>.<tensor>, PyTorch's layouts. Pure.
//
// Called by: worker/engine/model_file.h (the model of an engine) and checkpoint_model.h (the model
// of a checkpoint). Calls: common/files/safetensors.h, models/net/model_tensors.h.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/files/safetensors.h"
#include "models/net/model_layout.h"

namespace poseidon {

/// "conv1" of "conv1.weight".
std::string layer_of_tensor(const std::string& tensor);

/// The file's bytes in pieces. Most refer to the caller's parameters, which must not change
/// meanwhile; nothing of their size is copied.
class EncodedModel {
 public:
  /// The parameters of each parameter layer, by LayerIndex, and all running statistics, as
  /// statistic_places says. Equal values give equal bytes. INVALID_ARGUMENT for sizes that are not
  /// the network's.
  static absl::StatusOr<EncodedModel> encode(const ModelLayout& layout,
                                             const std::vector<std::span<const float>>& parameters,
                                             std::vector<float> statistics);

  std::vector<std::string_view> pieces() const;

 private:
  std::vector<float> statistics_;  // a copy: the device has them
  EncodedSafetensors file_;
};

}  // namespace poseidon
