#pragma once

// The tensors of a model file: parameters and running statistics, in the order in which
// the file has them, named <layer>.<tensor>. Pure.
//
// Called by: worker/engine/model_file.h, which loads such files; models/weights/encoded_model.h,
// which writes them; coordinator/planning/jobs/job_resolver.h, for the check of the model that
// worker 0 sends. Calls: model_layout.h.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/files/safetensors.h"
#include "models/net/model_layout.h"

namespace poseidon {

/// One tensor, and where its values are.
struct ModelTensor {
  std::string layer_name;
  std::string name;  ///< "conv1.weight"
  Shape shape;
  bool is_statistic = false;
  LayerIndex layer;        ///< of a parameter
  std::size_t offset = 0;  ///< in the layer's parameters, or in all statistics; elements

  std::size_t elements() const { return static_cast<std::size_t>(element_count(shape)); }
};
std::vector<ModelTensor> model_tensors(const ModelLayout& layout);

/// INVALID_ARGUMENT, naming the tensor, unless the file has exactly these, each as float32.
absl::Status check_model_tensors(const SafetensorsHeader& file,
                                 std::span<const ModelTensor> tensors);

}  // namespace poseidon
