// Convolution on cuDNN, by plans of its graph interface (convolution_plans.h). When a plan fails at
// run time and the GPU still works, the next plan of the heuristics' list replaces it for good and
// computes all results again.
//
// Tensor cores need channels last. Tensors between layers have that order in Layout::kBfloat16 and,
// in `tf32`, Layout::kChannelsLast, and are used in place; bias and ReLU are then part of the
// convolution, if cuDNN has an engine that does all of it and keeps NaNs. Parameters, their
// gradients and all plain tensors are float32 with channels first. Inputs among them are first
// copied to the workspace with channels last, and rounded for 16-bit factors; results are copied
// back. Between plain tensors 16 bits work in the same way, and floats are used in place.
//
// Where cuDNN does not plan one of the three computations so, or refuses it when it is tried out,
// tensors that have channels last are refused (the layer then stands between conversions), and
// plain ones of 16 bits have channels first; where it will not have that either, all three are of
// rounded values that are kept as float32: products of two of them are exact there, so what is
// summed is the same. In float16 each tensor has a scale of its own, found each time on the device
// (half_scale.h).

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/engine/cuda/convolution_plans.h"
#include "worker/engine/cuda/cuda_operators.h"
#include "worker/engine/cuda/cuda_status.h"
#include "worker/engine/cuda/kernels/cuda_kernels.h"
#include "worker/engine/half_scale.h"

namespace poseidon {
namespace {

constexpr std::size_t kSliceAlignmentBytes = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kSliceAlignmentBytes - 1) / kSliceAlignmentBytes * kSliceAlignmentBytes;
}

/// How cuDNN sees a layer's tensors.
struct Form {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  bool has_channels_last = false;
  bool may_round = false;  ///< floats to TF32

  /// 16 bits, and not rounded values kept as float32.
  bool is_narrow() const { return type != CUDNN_DATA_FLOAT; }
  std::size_t element_bytes() const { return is_narrow() ? 2 : sizeof(float); }
  /// Whether a plain tensor of such planes is none of that form.
  bool differs_from_plain(const cuda::Planes& planes) const {
    return is_narrow() || (has_channels_last && planes.channels > 1 && planes.plane > 1);
  }
};

cuda::Planes planes_of(std::int64_t samples, const Shape& shape) {
  return {.samples = samples, .channels = shape[0], .plane = shape[1] * shape[2]};
}
std::int64_t elements_of(const cuda::Planes& p) { return p.samples * p.channels * p.plane; }

/// Where a convolution's tensors are, or their gradients; null: not of this pass.
struct Places {
  const void* input = nullptr;
  const void* weight = nullptr;
  const void* output = nullptr;
  const void* bias = nullptr;
  const void* workspace = nullptr;

  bool operator==(const Places&) const = default;
};

/// One of a layer's computations: the plans that may do it, the best first.
class PlannedPass {
 public:
  /// Instead of those before.
  void set(std::shared_ptr<const ConvolutionPlans> plans) {
    plans_ = std::move(plans);
    current_ = 0;
    may_change_ = true;
  }
  /// The largest need of all, as any may have to step in.
  std::size_t workspace_bytes() const {
    if (plans_ == nullptr) return 0;
    std::size_t most = 0;
    for (const ConvolutionPlan& one : *plans_) most = std::max(most, one.workspace_bytes);
    return most;
  }

  /// Of what will run first.
  bool has_tensor_cores() const { return plans_->front().has_tensor_cores; }

  /// The one at hand is not right, though it ran. False: there is no other.
  bool reject() {
    if (current_ + 1 == plans_->size()) return false;
    ++current_;
    return true;
  }
  /// No other steps in for the one at hand from now on.
  void settle() { may_change_ = false; }

  /// A refusal is one of the plan; so is any other failure that leaves the GPU well, which is worth
  /// a word.
  absl::Status run(const CudaContext& context, const LayerSpec& layer, std::string_view what,
                   Places places) {
    POSEIDON_RETURN_IF_ERROR(launch_status(what));  // of what made the factors
    places.workspace = context.workspace();
    POSEIDON_ASSIGN_OR_RETURN(const cudnnBackendDescriptor_t pack, pack_of(places));
    for (;; ++current_) {
      const ConvolutionPlan& one = (*plans_)[current_];
      const cudnnStatus_t status = cudnnBackendExecute(context.cudnn(), one.plan.get(), pack);
      if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
      const absl::Status failure = cuda_status(status, what);
      if (!may_change_ || !context.is_well() || current_ + 1 == plans_->size()) return failure;
      if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) continue;
      context.warn(absl::StrCat("layer '", layer.name,
                                "': another engine of cuDNN takes the place of ", one.engine, ": ",
                                failure.message()));
    }
  }

 private:
  struct Pack {
    Places places;
    CudnnDescriptor descriptor;
  };
  /// A batch's images alternate between two places; parameters and what is planned stay where they
  /// are, so that warm iterations make no descriptors.
  static constexpr std::size_t kMaxPacks = 4;

  absl::StatusOr<cudnnBackendDescriptor_t> pack_of(const Places& places) {
    for (const Pack& pack : packs_) {
      if (pack.places == places) return pack.descriptor.get();
    }
    std::vector<std::int64_t> numbers;
    std::vector<void*> data;
    const auto add = [&](ConvolutionTensor number, const void* place) {
      if (place == nullptr) return;
      numbers.push_back(number);
      data.push_back(const_cast<void*>(place));  // cuDNN knows which ones it writes
    };
    add(kInput, places.input);
    add(kWeight, places.weight);
    add(kOutput, places.output);
    add(kBias, places.bias);
    void* const workspace = const_cast<void*>(places.workspace);
    CudnnBuilder builder(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    builder.with_all(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::span<const std::int64_t>(numbers))
        .addresses(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, data)
        .addresses(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, std::span(&workspace, 1));
    POSEIDON_ASSIGN_OR_RETURN(CudnnDescriptor descriptor, builder.build());
    if (packs_.size() == kMaxPacks) packs_.erase(packs_.begin());
    packs_.push_back({places, std::move(descriptor)});
    return packs_.back().descriptor.get();
  }

  std::shared_ptr<const ConvolutionPlans> plans_;
  std::size_t current_ = 0;
  bool may_change_ = true;
  std::vector<Pack> packs_;  ///< the newest last
};

class Convolution final : public LayerOperator {
 public:
  Convolution(const LayerSpec& layer, const OperatorOptions& options, CudaContext& context)
      : layer_(layer),
        samples_(options.batch_size),
        narrow_type_(narrow_type(context.precision())),
        rounds_(narrow_type_ != CUDNN_DATA_FLOAT),
        scales_(narrow_type_ == CUDNN_DATA_HALF),
        input_is_last_(has_channels_last(options.input_layout())),
        output_is_last_(has_channels_last(options.output_layout)),
        relu_(options.relu == ReluShare::kForward),
        wants_input_gradient_(options.wants_input_gradient),
        input_planes_(planes_of(samples_, layer.input_shape)),
        output_planes_(planes_of(samples_, layer.output_shape)),
        weight_planes_(weight_planes(layer.parameters.front().shape)),
        bias_planes_{.samples = 1, .channels = layer.output_shape[0], .plane = 1},
        images_{.samples = samples_,
                .channels = layer.output_shape[0],
                .plane = layer.output_shape[1] * layer.output_shape[2],
                .valid = samples_,
                .layout = options.output_layout},
        context_(context) {
    const Shape& weight = layer.parameters.front().shape;
    const std::int64_t of_one_output = weight[1] * weight[2] * weight[3];
    forward_limits_.input = half_limit(of_one_output);
    forward_limits_.weight = half_limit_beside(forward_limits_.input, of_one_output);
    // The output's gradient is rounded once, for two computations.
    const std::int64_t of_one_weight = samples_ * images_.plane;
    const std::int64_t of_one_input = weight[0] / layer.groups * weight[2] * weight[3];
    gradient_limit_ = half_limit(std::max(of_one_weight, of_one_input));
    backward_limits_ = {.input = half_limit_beside(gradient_limit_, of_one_weight),
                        .weight = half_limit_beside(gradient_limit_, of_one_input)};
  }

  absl::Status open() {
    absl::Status refused;
    if (!rounds_) {
      const bool is_last = input_is_last_ || output_is_last_;
      refused = open_as({.has_channels_last = is_last,
                         .may_round = context_.precision() == CudaPrecision::kTf32});
      return is_last ? refused_in_layout(refused) : refused;
    }
    for (const bool has_channels_last : {true, false}) {
      refused = open_as({.type = narrow_type_, .has_channels_last = has_channels_last});
      if (input_is_last_ || output_is_last_) return refused_in_layout(refused);
      if (!may_try_another(refused)) return refused;
    }
    warn_once(refused_in_16_bits,
              absl::StrCat("layer '", layer_.name, "' and perhaps others are rounded to ",
                           scales_ ? "fp16" : "bf16",
                           " but computed with in float32, which is slower: ", refused.message()));
    // TF32 changes no value that is rounded, but the sums and differences of some algorithms.
    return open_as({});
  }

  absl::Status forward(const ForwardArgs& args) override {
    return in_layer(layer_.name, run_forward(args));
  }
  absl::Status backward(const BackwardArgs& args) override {
    return in_layer(layer_.name, run_backward(args));
  }

 private:
  // ---- planning ----

  /// Without memory there is no workspace for the layers before, either.
  bool may_try_another(const absl::Status& refused) const {
    if (refused.ok() || absl::IsResourceExhausted(refused)) return false;
    static_cast<void>(cudaGetLastError());  // or the next launch would report it
    return context_.is_well();
  }
  /// UNIMPLEMENTED where the layer may stand between conversions instead.
  absl::Status refused_in_layout(const absl::Status& refused) const {
    if (!may_try_another(refused)) return refused;
    warn_once(
        refused_in_place,
        absl::StrCat("layer '", layer_.name,
                     "' and possibly others need conversions of their layout, which is slower: ",
                     refused.message()));
    return absl::UnimplementedError(refused.message());
  }

  /// A network has hundreds of such layers.
  void warn_once(std::atomic<bool>& has_warned, const std::string& message) const {
    if (!has_warned.exchange(true)) context_.warn(message);
  }
  static inline std::atomic<bool> refused_in_place{false}, refused_in_16_bits{false},
      refused_behind{false};

  static cuda::Planes weight_planes(const Shape& shape) {
    return {.samples = shape[0], .channels = shape[1], .plane = shape[2] * shape[3]};
  }

  /// All three computations, with tensors of one form. May be called again.
  absl::Status open_as(const Form& form) {
    form_ = form;
    if (output_is_last_ && has_bias()) {
      forward_pass_ = relu_ ? ConvolutionPass::kForwardBiasRelu : ConvolutionPass::kForwardBias;
      const absl::Status refused = plan();
      if (refused.ok() || absl::IsResourceExhausted(refused) || !context_.is_well()) return refused;
      warn_once(refused_behind,
                absl::StrCat("layer '", layer_.name, "' and perhaps others get their bias",
                             relu_ ? " and ReLU" : "",
                             " in a pass of its own, which is slower: ", refused.message()));
    }
    forward_pass_ = ConvolutionPass::kForward;
    return plan();
  }

  absl::Status plan() {
    POSEIDON_RETURN_IF_ERROR(plan(forward_pass_, forward_));
    if (forward_pass_ != ConvolutionPass::kForward && !forward_.has_tensor_cores()) {
      // Of groups, for one; a pass over the output costs less.
      return absl::UnimplementedError("cuDNN does not compute all of it on tensor cores");
    }
    POSEIDON_RETURN_IF_ERROR(plan(ConvolutionPass::kWeightGradient, of_weight_));
    if (wants_input_gradient_) {
      POSEIDON_RETURN_IF_ERROR(plan(ConvolutionPass::kInputGradient, of_input_));
    }
    algorithm_bytes_ = aligned(std::max(
        {forward_.workspace_bytes(), of_weight_.workspace_bytes(), of_input_.workspace_bytes()}));
    std::size_t bytes =
        algorithm_bytes_ + aligned(cuda::channel_sums_scratch(images_) * sizeof(double));
    if (moves()) {
      bytes += input_place_bytes() + output_place_bytes() + moved_bytes(weight_planes_) +
               std::max(aligned(sizeof(Scales)), moved_bytes(bias_planes_));
    }
    POSEIDON_RETURN_IF_ERROR(context_.reserve_workspace(bytes));
    return form_.is_narrow() || form_.has_channels_last ? try_out() : absl::OkStatus();
  }

  absl::Status plan(ConvolutionPass pass, PlannedPass& planned) {
    ConvolutionProblem problem = convolution_problem(layer_, samples_);
    problem.type = form_.type;
    problem.has_channels_last = form_.has_channels_last;
    problem.may_round = form_.may_round;
    POSEIDON_ASSIGN_OR_RETURN(std::shared_ptr<const ConvolutionPlans> plans,
                              context_.convolutions().plans(problem, pass));
    planned.set(std::move(plans));
    return absl::OkStatus();
  }

  /// Whether cuDNN does what its heuristics say: with whatever the workspace holds, and tensors of
  /// the moment for those that it computes with where they will lie.
  absl::Status try_out() {
    DeviceMemory input{nullptr, nullptr}, output{nullptr, nullptr};
    const auto each = static_cast<std::int64_t>(form_.element_bytes());
    if (input_is_last_) {
      POSEIDON_ASSIGN_OR_RETURN(input, context_.allocate(each * elements_of(input_planes_)));
    }
    if (output_is_last_) {
      POSEIDON_ASSIGN_OR_RETURN(output, context_.allocate(each * elements_of(output_planes_)));
    }
    absl::Status status = call_all(input != nullptr ? input.get() : input_place(),
                                   output != nullptr ? output.get() : output_place());
    // cudaFree() would wait without a deadline.
    status.Update(context_.wait(context_.compute()));
    return status;
  }

  absl::Status call_all(void* input, void* output) {
    if (forward_pass_ == ConvolutionPass::kForwardBiasRelu) {
      POSEIDON_RETURN_IF_ERROR(call_with_nans(input, output));
    } else {
      POSEIDON_RETURN_IF_ERROR(call_forward(input, weight_place(), output));
    }
    POSEIDON_RETURN_IF_ERROR(call_of_weight(input, output, weight_place()));
    if (!wants_input_gradient_) return absl::OkStatus();
    return call_of_input(weight_place(), output, input);
  }

  /// Forward by the first engine by which what is not a number stays none: cuDNN promises it of no
  /// ReLU, and a training that has failed would go on as if it had not. No other takes its place.
  absl::Status call_with_nans(void* input, void* output) {
    constexpr int kNanBytes = 0xff;  // such a bfloat16 is one, such a float too
    const cudaStream_t stream = context_.compute();
    const auto input_bytes =
        form_.element_bytes() * static_cast<std::size_t>(elements_of(input_planes_));
    POSEIDON_CUDA(cudaMemsetAsync(input, kNanBytes, input_bytes, stream));
    POSEIDON_CUDA(cudaMemsetAsync(weight_place(), kNanBytes, moved_bytes(weight_planes_), stream));
    POSEIDON_CUDA(cudaMemsetAsync(bias_place(), kNanBytes, moved_bytes(bias_planes_), stream));
    do {
      POSEIDON_RETURN_IF_ERROR(call_forward(input, weight_place(), output));
      // A copy to memory that is not pinned waits itself, and without a deadline.
      POSEIDON_RETURN_IF_ERROR(context_.wait(stream));
      // A bfloat16 is the upper half of a float, which is the later one in memory.
      std::uint16_t first = 0;
      const auto* const upper = static_cast<const std::byte*>(output) + form_.element_bytes() - 2;
      POSEIDON_CUDA(cudaMemcpyAsync(&first, upper, sizeof(first), cudaMemcpyDeviceToHost, stream));
      POSEIDON_RETURN_IF_ERROR(context_.wait(stream));
      constexpr std::uint16_t kMagnitude = 0x7fff, kInfinity = 0x7f80;  // of both
      if ((first & kMagnitude) > kInfinity) {
        forward_.settle();
        return absl::OkStatus();
      }
    } while (forward_.reject());
    return absl::UnimplementedError("the ReLU of cuDNN's engines makes 0 of NaN");
  }

  // ---- the workspace: the algorithm's, sums of the bias, rounded tensors, their scales ----

  static cudnnDataType_t narrow_type(CudaPrecision precision) {
    switch (precision) {
      case CudaPrecision::kBfloat16:
        return CUDNN_DATA_BFLOAT16;
      case CudaPrecision::kFloat16:
        return CUDNN_DATA_HALF;
      case CudaPrecision::kFloat32:
      case CudaPrecision::kTf32:
        break;
    }
    return CUDNN_DATA_FLOAT;
  }
  /// Whether anything has to be in the workspace in another form than where it lies.
  bool moves() const { return rounds_ || form_.has_channels_last; }
  std::size_t moved_bytes(const cuda::Planes& planes) const {
    return aligned(static_cast<std::size_t>(elements_of(planes)) * form_.element_bytes());
  }
  std::size_t input_place_bytes() const { return input_is_last_ ? 0 : moved_bytes(input_planes_); }
  std::size_t output_place_bytes() const {
    return output_is_last_ ? 0 : moved_bytes(output_planes_);
  }
  double* bias_sums() const {
    return reinterpret_cast<double*>(context_.workspace() + algorithm_bytes_);
  }
  std::byte* input_place() const {
    return context_.workspace() + algorithm_bytes_ +
           aligned(cuda::channel_sums_scratch(images_) * sizeof(double));
  }
  std::byte* output_place() const { return input_place() + input_place_bytes(); }
  std::byte* weight_place() const { return output_place() + output_place_bytes(); }
  /// In the device's memory. Of what the pass has rounded.
  struct Scales {
    HalfScale input, weight, gradient;
    std::uint32_t parts[cuda::kMagnitudeParts];  ///< while one is found
  };
  Scales* scales() const {
    return reinterpret_cast<Scales*>(weight_place() + moved_bytes(weight_planes_));
  }
  /// Where there are no scales.
  std::byte* bias_place() const { return weight_place() + moved_bytes(weight_planes_); }

  /// What cuDNN shall read: the tensor itself, which may be of the form already, or moved to
  /// `place`; in float16 with `scale`, by which magnitudes stay below 2^limit.
  const void* moved(const float* from, bool is_of_form, std::byte* place,
                    const cuda::Planes& planes, HalfScale* scale, int limit) const {
    if (is_of_form || (!rounds_ && !form_.differs_from_plain(planes))) return from;
    const cudaStream_t stream = context_.compute();
    const std::int64_t elements = elements_of(planes);
    auto* const kept = reinterpret_cast<float*>(place);
    if (scales_) cuda::half_scale_of(stream, from, elements, limit, scales()->parts, scale);
    if (form_.differs_from_plain(planes)) {
      cuda::narrow(stream, kernel_type(), planes, form_.has_channels_last, from, scale, place);
    } else if (scales_) {
      cuda::round_to_float16(stream, from, scale, kept, elements);
    } else {
      cuda::round_to_bfloat16(stream, from, kept, elements);
    }
    return place;
  }
  /// Where cuDNN shall write what `deliver` brings to `to`.
  void* target(float* to, bool is_of_form, std::byte* place, const cuda::Planes& planes) const {
    return !is_of_form && form_.differs_from_plain(planes) ? static_cast<void*>(place) : to;
  }
  /// The scales: of the factors of which `place` has the products' sums.
  void deliver(const std::byte* place, float* to, const cuda::Planes& planes,
               const cuda::NarrowScales& scales, const cuda::Epilogue& epilogue = {}) const {
    if (!form_.differs_from_plain(planes)) return;
    cuda::widen(context_.compute(), kernel_type(), planes, form_.has_channels_last, place, scales,
                epilogue, to);
  }
  cuda::NarrowType kernel_type() const {
    if (!rounds_) return cuda::NarrowType::kFloat32;
    return scales_ ? cuda::NarrowType::kFloat16 : cuda::NarrowType::kBfloat16;
  }

  // ---- cuDNN's calls ----

  absl::Status call_forward(const void* x, const void* w, void* y) {
    const bool has_bias_behind = forward_pass_ != ConvolutionPass::kForward;
    return forward_.run(
        context_, layer_, "convolution",
        {.input = x, .weight = w, .output = y, .bias = has_bias_behind ? bias_place() : nullptr});
  }
  absl::Status call_of_weight(const void* x, const void* dy, void* dw) {
    return of_weight_.run(context_, layer_, "convolution's gradient of its weight",
                          {.input = x, .weight = dw, .output = dy});
  }
  absl::Status call_of_input(const void* w, const void* dy, void* dx) {
    return of_input_.run(context_, layer_, "convolution's gradient of its input",
                         {.input = dx, .weight = w, .output = dy});
  }

  // ---- running ----

  const void* moved_input(const float* input, int limit) const {
    return moved(input, input_is_last_, input_place(), input_planes_, &scales()->input, limit);
  }
  const void* moved_weight(const float* weight, int limit) const {
    return moved(weight, /*is_of_form=*/false, weight_place(), weight_planes_, &scales()->weight,
                 limit);
  }

  absl::Status run_forward(const ForwardArgs& args) {
    const void* const x = moved_input(args.inputs[0], forward_limits_.input);
    const void* const w = moved_weight(args.parameters, forward_limits_.weight);
    const float* const bias = has_bias() ? args.parameters + elements_of(weight_planes_) : nullptr;
    const bool is_behind = forward_pass_ != ConvolutionPass::kForward;
    if (is_behind) {
      cuda::narrow(context_.compute(), kernel_type(), bias_planes_, form_.has_channels_last, bias,
                   /*scale=*/nullptr, bias_place());
    }
    void* const y = target(args.output, output_is_last_, output_place(), output_planes_);
    POSEIDON_RETURN_IF_ERROR(call_forward(x, w, y));
    const cuda::Epilogue epilogue = {.bias = bias, .relu = relu_};
    if (y != args.output) {
      deliver(output_place(), args.output, output_planes_, {&scales()->input, &scales()->weight},
              epilogue);
    } else if (bias != nullptr && !is_behind) {
      cuda::add_bias(context_.compute(), images_, epilogue, args.output);
    }
    return launch_status("convolution");
  }

  absl::Status run_backward(const BackwardArgs& args) {
    const void* const dy = moved(args.output_gradient, output_is_last_, output_place(),
                                 output_planes_, &scales()->gradient, gradient_limit_);
    POSEIDON_RETURN_IF_ERROR(run_of_weight(args, dy));
    if (has_bias()) {
      cuda::channel_sums(context_.compute(), images_, args.output_gradient, bias_sums(),
                         args.parameter_gradients + elements_of(weight_planes_));
    }
    if (args.input_gradients[0] != nullptr) POSEIDON_RETURN_IF_ERROR(run_of_input(args, dy));
    return launch_status("convolution gradient");
  }

  absl::Status run_of_weight(const BackwardArgs& args, const void* dy) {
    const void* const x = moved_input(args.forward.inputs[0], backward_limits_.input);
    POSEIDON_RETURN_IF_ERROR(call_of_weight(
        x, dy,
        target(args.parameter_gradients, /*is_of_form=*/false, weight_place(), weight_planes_)));
    deliver(weight_place(), args.parameter_gradients, weight_planes_,
            {&scales()->input, &scales()->gradient});
    return absl::OkStatus();
  }

  absl::Status run_of_input(const BackwardArgs& args, const void* dy) {
    const void* const w = moved_weight(args.forward.parameters, backward_limits_.weight);
    float* const dx = args.input_gradients[0];
    POSEIDON_RETURN_IF_ERROR(
        call_of_input(w, dy, target(dx, input_is_last_, input_place(), input_planes_)));
    if (!input_is_last_) {
      deliver(input_place(), dx, input_planes_, {&scales()->weight, &scales()->gradient});
    }
    return absl::OkStatus();
  }

  bool has_bias() const { return layer_.parameters.size() > 1; }

  const LayerSpec layer_;
  const std::int64_t samples_;
  const cudnnDataType_t narrow_type_;  ///< of rounded tensors; float where none is rounded
  const bool rounds_, scales_;
  const bool input_is_last_, output_is_last_;  ///< channels, of their gradients too
  const bool relu_;                            ///< of the output, behind the bias
  const bool wants_input_gradient_;
  const cuda::Planes input_planes_, output_planes_, weight_planes_, bias_planes_;  // of the batch
  const cuda::Images images_;                                                      // the output's
  CudaContext& context_;
  /// In float16: below which powers of two the factors are kept.
  struct Limits {
    int input, weight;
  };
  Limits forward_limits_{}, backward_limits_{};
  int gradient_limit_ = 0;
  Form form_;
  ConvolutionPass forward_pass_ = ConvolutionPass::kForward;
  PlannedPass forward_, of_weight_, of_input_;
  std::size_t algorithm_bytes_ = 0;
};

}  // namespace

MadeOperator make_cuda_convolution(const LayerSpec& layer, const OperatorOptions& options,
                                   CudaContext& context) {
  auto made = std::make_unique<Convolution>(layer, options, context);
  POSEIDON_RETURN_IF_ERROR(made->open());
  return made;
}

}  // namespace poseidon
