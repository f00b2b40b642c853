#include "worker/engine/cuda/convolution_plans.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

constexpr std::size_t kMaxPlans = 4;
/// Of those that may have to step in, unless the first wants more anyway.
constexpr std::size_t kStandInWorkspaceBytes = std::size_t{256} << 20;
/// The device's memory is aligned to 256 bytes, but parameters of a layer and slices of a tensor
/// begin at multiples of 16 (cuda_kernels.h).
constexpr std::int64_t kTensorAlignmentBytes = 16;
/// How many of the heuristics' answers are looked at: each costs cuDNN a check, and the first ones
/// are often one engine with different tiles.
constexpr std::size_t kMaxAnswers = 48;

using Sizes = std::array<std::int64_t, 4>;

Sizes strides_of(const Sizes& sizes, bool has_channels_last) {
  const auto [n, c, h, w] = sizes;
  if (has_channels_last) return {h * w * c, 1, w * c, c};
  return {c * h * w, h * w, w, 1};
}

/// `is_virtual`: it is nowhere in memory, one operation gives it to the next, as float32.
absl::StatusOr<CudnnDescriptor> make_tensor(std::int64_t number, const Sizes& sizes,
                                            const ConvolutionProblem& problem,
                                            bool is_virtual = false) {
  const Sizes strides = strides_of(sizes, problem.has_channels_last);
  CudnnBuilder builder(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  builder.with(CUDNN_ATTR_TENSOR_UNIQUE_ID, number)
      .with(CUDNN_ATTR_TENSOR_DATA_TYPE, is_virtual ? CUDNN_DATA_FLOAT : problem.type)
      .with_all(CUDNN_ATTR_TENSOR_DIMENSIONS, std::span<const std::int64_t>(sizes))
      .with_all(CUDNN_ATTR_TENSOR_STRIDES, std::span<const std::int64_t>(strides))
      .with(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kTensorAlignmentBytes);
  if (is_virtual) builder.with(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  return builder.build();
}

absl::StatusOr<CudnnDescriptor> make_rule(const ConvolutionProblem& problem) {
  const std::array<std::int64_t, 2> dilations = {1, 1};
  return CudnnBuilder(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)
      .with(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2})
      .with(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .with(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
      .with_all(CUDNN_ATTR_CONVOLUTION_DILATIONS, std::span<const std::int64_t>(dilations))
      .with_all(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
                std::span<const std::int64_t>(problem.stride))
      .with_all(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, std::span<const std::int64_t>(problem.pad))
      .with_all(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, std::span<const std::int64_t>(problem.pad))
      .build();
}

/// The operation that forms the sums. (Groups are what channels of input and weight tell.)
absl::StatusOr<CudnnDescriptor> make_sums(ConvolutionPass pass, const CudnnDescriptor& rule,
                                          const CudnnDescriptor& input,
                                          const CudnnDescriptor& weight,
                                          const CudnnDescriptor& output) {
  // Of the type that sums have: cuDNN takes a double, too, and reads a float from its first bytes,
  // 0.
  constexpr float kOne = 1.0f, kZero = 0.0f;
  switch (pass) {
    case ConvolutionPass::kWeightGradient:
      return CudnnBuilder(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR)
          .with(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, input)
          .with(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, weight)
          .with(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, output)
          .with(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, rule)
          .with(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, kOne)
          .with(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, kZero)
          .build();
    case ConvolutionPass::kInputGradient:
      return CudnnBuilder(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
          .with(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, input)
          .with(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, weight)
          .with(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, output)
          .with(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, rule)
          .with(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, kOne)
          .with(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, kZero)
          .build();
    case ConvolutionPass::kForward:
    case ConvolutionPass::kForwardBias:
    case ConvolutionPass::kForwardBiasRelu:
      break;
  }
  return CudnnBuilder(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
      .with(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, input)
      .with(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, weight)
      .with(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, output)
      .with(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, rule)
      .with(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, kOne)
      .with(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, kZero)
      .build();
}

/// All descriptors of a graph, for as long as it is planned.
struct Graph {
  std::vector<CudnnDescriptor> parts;  ///< what operations are made from, and they
  std::vector<cudnnBackendDescriptor_t> operations;
  CudnnDescriptor whole;

  /// Keeps it, or returns the error.
  absl::StatusOr<const CudnnDescriptor*> keep(absl::StatusOr<CudnnDescriptor> made) {
    if (!made.ok()) return made.status();
    parts.push_back(*std::move(made));
    return &parts.back();
  }
  absl::Status add(absl::StatusOr<CudnnDescriptor> operation) {
    POSEIDON_ASSIGN_OR_RETURN(const CudnnDescriptor* const kept, keep(std::move(operation)));
    operations.push_back(kept->get());
    return absl::OkStatus();
  }
};

/// out = mode(in, other); other may be none.
absl::Status add_pointwise(Graph& graph, cudnnPointwiseMode_t mode, const CudnnDescriptor& in,
                           const CudnnDescriptor* other, const CudnnDescriptor& out) {
  POSEIDON_ASSIGN_OR_RETURN(
      const CudnnDescriptor* const kind,
      graph.keep(CudnnBuilder(CUDNN_BACKEND_POINTWISE_DESCRIPTOR)
                     .with(CUDNN_ATTR_POINTWISE_MODE, mode)
                     .with(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT)
                     // A wish: engines need not heed it.
                     .with(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_PROPAGATE_NAN)
                     .build()));
  CudnnBuilder builder(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  builder.with(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, *kind)
      .with(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, in);
  if (other != nullptr) builder.with(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *other);
  builder.with(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
  return graph.add(builder.build());
}

absl::StatusOr<Graph> make_graph(const PlanTarget& target, const ConvolutionProblem& problem,
                                 ConvolutionPass pass) {
  enum Virtual : std::int64_t { kSums = 100, kWithBias };  // numbers of their own
  const auto with_samples = [&](const std::array<std::int64_t, 3>& image) -> Sizes {
    return {problem.samples, image[0], image[1], image[2]};
  };
  const Sizes output_sizes = with_samples(problem.output);
  const bool has_bias =
      pass == ConvolutionPass::kForwardBias || pass == ConvolutionPass::kForwardBiasRelu;
  Graph graph;
  graph.parts.reserve(16);  // addresses of its elements are kept
  POSEIDON_ASSIGN_OR_RETURN(const auto* const input,
                            graph.keep(make_tensor(kInput, with_samples(problem.input), problem)));
  POSEIDON_ASSIGN_OR_RETURN(const auto* const weight,
                            graph.keep(make_tensor(kWeight, problem.weight, problem)));
  POSEIDON_ASSIGN_OR_RETURN(const auto* const output,
                            graph.keep(make_tensor(kOutput, output_sizes, problem)));
  POSEIDON_ASSIGN_OR_RETURN(const auto* const rule, graph.keep(make_rule(problem)));
  if (!has_bias) {
    POSEIDON_RETURN_IF_ERROR(graph.add(make_sums(pass, *rule, *input, *weight, *output)));
  } else {
    const bool has_relu = pass == ConvolutionPass::kForwardBiasRelu;
    POSEIDON_ASSIGN_OR_RETURN(
        const auto* const bias,
        graph.keep(make_tensor(kBias, {1, problem.output[0], 1, 1}, problem)));
    POSEIDON_ASSIGN_OR_RETURN(
        const auto* const sums,
        graph.keep(make_tensor(kSums, output_sizes, problem, /*is_virtual=*/true)));
    POSEIDON_RETURN_IF_ERROR(graph.add(make_sums(pass, *rule, *input, *weight, *sums)));
    const CudnnDescriptor* with_bias = output;
    if (has_relu) {
      POSEIDON_ASSIGN_OR_RETURN(with_bias, graph.keep(make_tensor(kWithBias, output_sizes, problem,
                                                                  /*is_virtual=*/true)));
    }
    POSEIDON_RETURN_IF_ERROR(add_pointwise(graph, CUDNN_POINTWISE_ADD, *sums, bias, *with_bias));
    if (has_relu) {
      POSEIDON_RETURN_IF_ERROR(
          add_pointwise(graph, CUDNN_POINTWISE_RELU_FWD, *with_bias, nullptr, *output));
    }
  }
  CudnnBuilder builder(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  builder.with_all(CUDNN_ATTR_OPERATIONGRAPH_OPS,
                   std::span<const cudnnBackendDescriptor_t>(graph.operations));
  if (target.handle != nullptr) builder.with(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.handle);
  POSEIDON_ASSIGN_OR_RETURN(graph.whole, builder.build());
  return graph;
}

/// Configurations of engines that cuDNN holds for able, the best first; none is an answer too.
absl::StatusOr<std::vector<CudnnDescriptor>> ask(const PlanTarget& target, const Graph& graph,
                                                 cudnnBackendHeurMode_t mode) {
  CudnnBuilder builder(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  builder.with(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.whole)
      .with(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  if (target.handle == nullptr) builder.with(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.properties);
  POSEIDON_ASSIGN_OR_RETURN(const CudnnDescriptor heuristics, builder.build());

  POSEIDON_ASSIGN_OR_RETURN(std::size_t count, cudnn_attribute<cudnnBackendDescriptor_t>(
                                                   heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, {}));
  std::vector<CudnnDescriptor> answers(std::min(count, kMaxAnswers));
  std::vector<cudnnBackendDescriptor_t> bare;
  for (CudnnDescriptor& answer : answers) {
    cudnnBackendDescriptor_t made = nullptr;
    POSEIDON_CUDA(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &made));
    answer.reset(made);
    bare.push_back(made);
  }
  if (answers.empty()) return answers;
  POSEIDON_ASSIGN_OR_RETURN(count, cudnn_attribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                   std::span<cudnnBackendDescriptor_t>(bare)));
  answers.resize(std::min(count, answers.size()));
  return answers;
}

struct Engine {
  std::int64_t number = 0;
  bool is_fit = false;  ///< for this problem, by what cuDNN notes of it
  bool has_tensor_cores = false;
  bool is_compiled = false;  ///< when it is planned, which takes from a tenth of a second on
};

/// What an engine computes with, as far as its notes tell.
bool is_fit(std::span<const cudnnBackendNumericalNote_t> notes, const ConvolutionProblem& problem) {
  const bool is_float = problem.type == CUDNN_DATA_FLOAT;
  return std::none_of(notes.begin(), notes.end(), [&](cudnnBackendNumericalNote_t note) {
    switch (note) {
      case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
      case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        return true;
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
        return is_float && !problem.may_round;
      case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        return is_float;
      // What transforms have between is larger than the sums, whose size is all that half_scale.h
      // knows, and rounded once more.
      case CUDNN_NUMERICAL_NOTE_FFT:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD:
        return !is_float;
      default:
        return false;
    }
  });
}

absl::StatusOr<Engine> engine_of(const CudnnDescriptor& configuration,
                                 const ConvolutionProblem& problem) {
  cudnnBackendDescriptor_t bare = nullptr;
  POSEIDON_CUDA(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &bare));
  const CudnnDescriptor descriptor(bare);
  POSEIDON_RETURN_IF_ERROR(cudnn_attribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE,
                                           std::span<cudnnBackendDescriptor_t>(&bare, 1))
                               .status());
  Engine engine;
  POSEIDON_RETURN_IF_ERROR(cudnn_attribute(descriptor, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                           std::span<std::int64_t>(&engine.number, 1))
                               .status());
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  POSEIDON_ASSIGN_OR_RETURN(std::size_t count,
                            cudnn_attribute(descriptor, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                            std::span<cudnnBackendNumericalNote_t>(notes)));
  const auto noted = std::span(notes).first(std::min(count, notes.size()));
  engine.is_fit = is_fit(noted, problem);
  engine.has_tensor_cores =
      std::find(noted.begin(), noted.end(), CUDNN_NUMERICAL_NOTE_TENSOR_CORE) != noted.end();
  std::array<cudnnBackendBehaviorNote_t, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT> behavior{};
  POSEIDON_ASSIGN_OR_RETURN(count,
                            cudnn_attribute(descriptor, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
                                            std::span<cudnnBackendBehaviorNote_t>(behavior)));
  const auto told = std::span(behavior).first(std::min(count, behavior.size()));
  engine.is_compiled =
      std::find(told.begin(), told.end(), CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) != told.end();
  return engine;
}

absl::StatusOr<ConvolutionPlan> make_plan(const PlanTarget& target, CudnnDescriptor configuration) {
  CudnnBuilder builder(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  builder.with(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
  if (target.handle != nullptr) {
    builder.with(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target.handle);
  } else {
    builder.with(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.properties);
  }
  POSEIDON_ASSIGN_OR_RETURN(CudnnDescriptor plan, builder.build());
  std::int64_t bytes = 0;
  POSEIDON_RETURN_IF_ERROR(cudnn_attribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                           std::span<std::int64_t>(&bytes, 1))
                               .status());
  return ConvolutionPlan{.configuration = std::move(configuration),
                         .plan = std::move(plan),
                         .workspace_bytes = static_cast<std::size_t>(bytes)};
}

}  // namespace

ConvolutionProblem convolution_problem(const LayerSpec& layer, std::int64_t samples) {
  const Shape& in = layer.input_shape;
  const Shape& out = layer.output_shape;
  const Shape& weight = layer.parameters.front().shape;
  return {.samples = samples,
          .input = {in[0], in[1], in[2]},
          .output = {out[0], out[1], out[2]},
          .weight = {weight[0], weight[1], weight[2], weight[3]},
          .pad = {layer.pad_h, layer.pad_w},
          .stride = {layer.stride_h, layer.stride_w}};
}

absl::StatusOr<ConvolutionPlans> plan_convolution(const PlanTarget& target,
                                                  const ConvolutionProblem& problem,
                                                  ConvolutionPass pass,
                                                  std::size_t workspace_limit) {
  POSEIDON_ASSIGN_OR_RETURN(const Graph graph, make_graph(target, problem, pass));
  ConvolutionPlans plans;
  std::size_t limit = workspace_limit;
  absl::Status refusal;  // of what heuristics or plans did not take
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    absl::StatusOr<std::vector<CudnnDescriptor>> answers = ask(target, graph, mode);
    if (!answers.ok()) {
      refusal.Update(answers.status());
      continue;
    }
    for (CudnnDescriptor& configuration : *answers) {
      if (plans.size() == kMaxPlans) return plans;
      const absl::StatusOr<Engine> engine = engine_of(configuration, problem);
      if (!engine.ok()) {
        refusal.Update(engine.status());
        continue;
      }
      if (!engine->is_fit || (engine->is_compiled && !plans.empty())) continue;
      const auto same = [&](const ConvolutionPlan& one) { return one.engine == engine->number; };
      if (std::any_of(plans.begin(), plans.end(), same)) continue;  // with other tiles
      absl::StatusOr<ConvolutionPlan> plan = make_plan(target, std::move(configuration));
      if (!plan.ok()) {
        refusal.Update(plan.status());
        continue;
      }
      if (plan->workspace_bytes > limit) continue;
      plan->engine = engine->number;
      plan->has_tensor_cores = engine->has_tensor_cores;
      if (plans.empty()) limit = std::max(plan->workspace_bytes, kStandInWorkspaceBytes);
      plans.push_back(*std::move(plan));
    }
  }
  if (!plans.empty()) return plans;
  return absl::InternalError(
      absl::StrCat("cuDNN has no engine that gives the same bits again in ", workspace_limit >> 20,
                   " MiB of workspace; use a smaller batch_size, or micro_batches",
                   refusal.ok() ? "" : " (", refusal.message(), refusal.ok() ? "" : ")"));
}

absl::StatusOr<std::shared_ptr<const ConvolutionPlans>> ConvolutionPlanner::plans(
    const ConvolutionProblem& problem, ConvolutionPass pass) {
  std::weak_ptr<const ConvolutionPlans>& made = made_[{problem, pass}];
  if (auto there = made.lock(); there != nullptr) return there;
  POSEIDON_ASSIGN_OR_RETURN(ConvolutionPlans plans,
                            plan_convolution(target_, problem, pass, workspace_limit_));
  auto kept = std::make_shared<const ConvolutionPlans>(std::move(plans));
  made = kept;
  return kept;
}

}  // namespace poseidon
