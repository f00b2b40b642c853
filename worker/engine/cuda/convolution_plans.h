#pragma once

// Chooses how cuDNN computes a convolution: plans of its graph interface, by its heuristics,
// without trial runs.
//
// Accepts only deterministic engines that compute in `precision`. Planning needs no GPU: PlanTarget
// may describe one, so that tests can ask the real cuDNN for its plans on an H100
// (convolution_plans_test.cc).
//
// Called by: worker/engine/cuda/convolution.cc. Calls: cuDNN, through cudnn_descriptor.h.

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "models/net/net.h"
#include "worker/engine/cuda/cudnn_descriptor.h"

namespace poseidon {

/// Sizes and types.
struct ConvolutionProblem {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;  ///< of all tensors; sums are float32
  bool has_channels_last = false;           ///< all tensors
  /// Of float tensors: whether factors may be rounded to TF32.
  bool may_round = false;
  std::int64_t samples = 1;
  std::array<std::int64_t, 3> input{}, output{};  ///< channels, height, width
  std::array<std::int64_t, 4> weight{};           ///< outputs, channels per group, height, width
  std::array<std::int64_t, 2> pad{}, stride{};    ///< of height and width

  auto operator<=>(const ConvolutionProblem&) const = default;
};

/// A convolution layer's, as float with channels first, not rounded.
ConvolutionProblem convolution_problem(const LayerSpec& layer, std::int64_t samples);

/// What is computed of a problem's four tensors: input, weight, output, and perhaps bias.
enum class ConvolutionPass {
  kForward,
  kForwardBias,      ///< with the bias, of the tensors' type, added to the float32 sums
  kForwardBiasRelu,  ///< of which then the ReLU is taken
  kWeightGradient,   ///< from input and output's gradient
  kInputGradient,    ///< from weight and output's gradient
};

/// Which number cuDNN knows each tensor by; gradients have their tensors' numbers.
enum ConvolutionTensor : std::int64_t { kInput = 1, kWeight, kOutput, kBias };

/// The GPU that is planned for: one that is there, or one that is described.
struct PlanTarget {
  cudnnHandle_t handle = nullptr;
  /// Finalized, of CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR; if there is no handle.
  const CudnnDescriptor* properties = nullptr;
};

/// Runs on the GPU that it was planned for, with any handle. Immutable.
struct ConvolutionPlan {
  CudnnDescriptor configuration, plan;
  std::int64_t engine = 0;  ///< cuDNN's number of it, for people
  bool has_tensor_cores = false;
  std::size_t workspace_bytes = 0;
};
/// The best first, each of another engine; at least one.
using ConvolutionPlans = std::vector<ConvolutionPlan>;

/// At most four plans; the best one's workspace is within `workspace_limit` bytes, and those that
/// may have to step in for it need no more than it does or 256 MiB. INTERNAL where cuDNN has none.
absl::StatusOr<ConvolutionPlans> plan_convolution(const PlanTarget& target,
                                                  const ConvolutionProblem& problem,
                                                  ConvolutionPass pass,
                                                  std::size_t workspace_limit);

/// Plans of one GPU, each made once for all layers of the same sizes that there are at the time: it
/// takes tens of milliseconds, and a network of 150 convolutions has some 25 kinds. One thread at a
/// time.
class ConvolutionPlanner {
 public:
  ConvolutionPlanner(cudnnHandle_t handle, std::size_t workspace_limit)
      : target_{.handle = handle}, workspace_limit_(workspace_limit) {}
  absl::StatusOr<std::shared_ptr<const ConvolutionPlans>> plans(const ConvolutionProblem& problem,
                                                                ConvolutionPass pass);

 private:
  const PlanTarget target_;
  const std::size_t workspace_limit_;
  std::map<std::tuple<ConvolutionProblem, ConvolutionPass>, std::weak_ptr<const ConvolutionPlans>>
      made_;
};

}  // namespace poseidon
