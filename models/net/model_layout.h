#pragma once

// What a cluster knows of a model: its layers with parameters, their tensors, and the state beside
// them. No operators and no data: servers, planner and checkpoints need none. Pure.
//
// Called by: coordinator/planning/jobs/job_resolver.h, models/weights/encoded_model.h,
// models/weights/checkpoint_model.h, worker/engine/model_file.h. Calls: net.h.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/net/net.h"
#include "nlohmann/json.hpp"

namespace poseidon {

/// Limits of a declared model; larger values are refused.
inline constexpr std::size_t kMaxDeclaredLayers = 16384;
inline constexpr std::size_t kMaxDeclaredDimensions = 8;

struct LayoutTensor {
  std::string name;  ///< within its layer, "weight"; "" where the layer has its name
  Shape shape;
};

/// One layer with parameters. Its tensors lie end to end, in this order.
struct LayoutLayer {
  std::string name;
  std::string type;                   ///< for people: "convolution"; of a declared one below
  std::vector<LayoutTensor> tensors;  ///< one or more
  /// The first tensor is the weight of a linear map, {outputs, inputs}, whose gradient is a sum of
  /// outer products: it may travel as factors.
  bool is_linear = false;
  std::int64_t multiply_adds = 0;  ///< per sample, forward; 0: unknown

  std::int64_t parameter_count() const;
};

struct ModelLayout {
  std::string name;
  std::vector<LayoutLayer> layers;         ///< forward order: position is the LayerIndex
  std::vector<StatisticPlace> statistics;  ///< end to end

  std::int64_t statistics_count() const;
};

/// "<layer>.<tensor>"; the layer's name where the tensor has none.
std::string full_tensor_name(const std::string& layer, const std::string& tensor);

ModelLayout layout_of(const NetSpec& net);

/// Types of declared layers.
inline constexpr char kDeclaredPlain[] = "plain", kDeclaredLinear[] = "linear";

/// A model as the program declares it that computes it (is_declared_model), in a job:
/// {"name": "train.py", "declared": [{"name": "fc", "type": "linear", "multiply_adds": 7840,
///   "tensors": [{"name": "weight", "shape": [10, 784]}, {"name": "bias", "shape": [10]}]}],
///  "state": [{"name": "bn1.running_mean", "shape": [64]}]}
///
/// INVALID_ARGUMENT, naming the layer and tensor: names that are not unique, of letters, digits or
/// _ - . /, or too long; shapes beyond kMaxTensorElements; a linear layer whose first tensor has
/// not two dimensions. Pure.
absl::StatusOr<ModelLayout> parse_declared_model(const nlohmann::json& model);

/// The first difference of two declared models, for people: "layer 3, fc2: tensor weight has shape
/// 10x64 here, 10x32 there"; "" when they are equal.
std::string layout_difference(const ModelLayout& here, const ModelLayout& there);

/// `model` as in a job: a declared one, or as resolve_network.
absl::StatusOr<ModelLayout> resolve_layout(const nlohmann::json& model,
                                           const std::filesystem::path& folder);

}  // namespace poseidon
