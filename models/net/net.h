#pragma once

// A network as data: layers, shapes, parameters. Pure; independent of devices.
//
// Called by: the coordinator (planning), the command line tool (`poseidon models`) and the engine
// (execution). Calls: models/net/net_derive.h, models/net/net_expand.h, models/shipped.h.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace poseidon {

/// Limits of a network file; larger values are refused before any computation.
inline constexpr std::int64_t kMaxDimension = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxTensorElements = std::int64_t{1} << 31;  ///< without the batch
inline constexpr std::int64_t kMaxLayerMultiplyAdds = std::int64_t{1} << 50;
inline constexpr std::size_t kMaxLayers = 4096;
inline constexpr std::size_t kMaxNameLength = 128;
inline constexpr std::int64_t kMaxNetworkFileBytes = std::int64_t{16} << 20;

/// Dimensions without the batch: {channels, height, width} for images, {features} for vectors.
using Shape = std::vector<std::int64_t>;
inline std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t dimension : shape) count *= dimension;
  return count;
}
std::string shape_to_string(const Shape& shape);  ///< "20x12x12"

enum class LayerType {
  kConvolution,
  kPooling,
  kFullyConnected,
  kRelu,
  kLrn,
  kDropout,
  kSoftmaxCrossEntropy,
  kAccuracy,
  kAdd,        ///< element by element sum of two or more inputs of one shape (residual connections)
  kBatchNorm,  ///< per channel, over the batch and the plane
  kConcat,     ///< two or more inputs, one behind the other along the channels
};
std::string_view layer_type_name(LayerType type);  ///< as in the network file: "convolution", ...

/// How a tensor gets its first values.
struct Initialiser {
  enum class Type { kConstant, kUniform, kGaussian, kTruncatedGaussian, kXavier, kHe };
  enum class Fan { kIn, kOut, kAverage };  ///< what kXavier and kHe divide by
  Type type = Type::kXavier;
  double value = 0.0;   ///< kConstant
  double bound = 0.01;  ///< kUniform: within -bound to bound
  double std = 0.01;    ///< kGaussian; kTruncatedGaussian before values beyond 2 std are redrawn
  Fan fan = Fan::kIn;
};

/// One tensor of a layer. Layouts are PyTorch's: convolution weight
/// {out, in / groups, kernel_h, kernel_w}, fully connected weight {out, in}, bias {out}; weight and
/// bias of a batch normalisation {channels}.
struct ParameterSpec {
  std::string name;  ///< "weight", "bias"; of statistics "running_mean", "running_var"
  Shape shape;
  Initialiser initialiser;
};

/// One operator with its shapes resolved.
struct LayerSpec {
  std::string name;
  LayerType type = LayerType::kRelu;
  std::vector<std::size_t> inputs;  ///< indices of earlier layers; kNetworkInput for the data
  Shape input_shape;                ///< of the first input
  Shape output_shape;
  std::vector<ParameterSpec> parameters;
  /// Running statistics (batch_norm): tensors that the forward of training moves and the forward of
  /// tests reads. No parameters: neither synchronised between workers nor counted.
  std::vector<ParameterSpec> statistics;
  /// Leads only to auxiliary losses, so tests skip it.
  bool train_only = false;

  // convolution, pooling (a global one has the plane as its kernel)
  std::int64_t kernel_h = 0, kernel_w = 0, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
  std::int64_t groups = 1;
  enum class Pool { kMax, kAverage } pool = Pool::kMax;
  bool ceil_mode = false;      ///< pooling: Caffe rounds output sizes up, PyTorch down
  bool count_padding = false;  ///< average pooling: padding counts as zeros; overhang never counts
  // lrn (across channels): y = x / (k + alpha / local_size * sum x^2)^beta
  std::int64_t local_size = 5;
  double alpha = 1e-4, beta = 0.75, k = 1.0;
  double dropout_ratio = 0.5;
  std::vector<std::int64_t> concat_channels;  ///< of each input
  // batch_norm, as PyTorch's: running = (1 - momentum) * running + momentum * batch
  double epsilon = 1e-5, momentum = 0.1;
  // softmax_cross_entropy
  double loss_weight = 1.0;
  double label_smoothing = 0.0;  ///< this share of the label goes to all classes alike
  bool auxiliary = false;        ///< not the network's result; counts in training only

  std::int64_t parameter_count() const;
  std::int64_t multiply_adds = 0;  ///< per sample, forward
};
inline constexpr std::size_t kNetworkInput = static_cast<std::size_t>(-1);

/// A whole network, in forward order (each layer after its inputs), with one softmax cross-entropy
/// that is its loss, any number of auxiliary ones, and optionally an accuracy layer.
struct NetSpec {
  std::string name;
  Shape input_shape;
  std::int64_t classes = 0;
  std::vector<LayerSpec> layers;
  nlohmann::json source;  ///< the network file as read, for embedding in a job

  std::int64_t parameter_count() const;
  /// Per sample, forward; convolution and fully connected layers count, as in the literature.
  std::int64_t multiply_adds() const;
  /// Indices into `layers` of those that own parameters, in forward order. Position in this list is
  /// the LayerIndex of plans and messages.
  std::vector<std::size_t> parameter_layers() const;
  /// All layers' running statistics, end to end.
  std::int64_t statistics_count() const;
};

/// One tensor of running statistics in the range of all (NetSpec::statistics_count elements, layers
/// in forward order, end to end): what Executor::read_statistics and write_statistics move.
struct StatisticPlace {
  std::string name;  ///< "<layer>.running_mean"
  Shape shape;
  std::int64_t offset = 0;  ///< elements
};
std::vector<StatisticPlace> statistic_places(const NetSpec& net);

/// Parses a network file (models/README.md has the format) and infers all shapes. Errors name the
/// layer and, where shapes do not fit, both shapes; unknown keys get the nearest known name. Pure.
absl::StatusOr<NetSpec> parse_network(const nlohmann::json& json);

/// `model` as in a job file: a shipped name, a path (relative to `folder`), or an inline network.
/// An unknown name is refused with the nearest shipped one.
absl::StatusOr<NetSpec> resolve_network(const nlohmann::json& model,
                                        const std::filesystem::path& folder);

}  // namespace poseidon
