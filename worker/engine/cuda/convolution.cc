// Convolution on cuDNN, by its version 7 interface: it plans by heuristics without a run and takes
// plain descriptors. Only algorithms that give the same bits again are taken. Where one fails when
// it runs and the GPU goes on, the next of the heuristics' list takes its place for good and writes
// all results anew.
//
// In bfloat16 and float16 cuDNN's tensors have channels last, as tensor cores want them. Those in
// Layout::kBfloat16 lie so already and are computed with where they are. Parameters, their
// gradients and all plain tensors are float32: what is read of them is rounded into the workspace
// before, and results come back from there; on the way they change places, too. Where cuDNN does
// not plan one of the three computations so, or refuses it when it is tried out, tensors in
// kBfloat16 are refused, and of plain ones channels are first; where it will not have that either,
// all three are of rounded values that are kept as float32: products of two of them are exact
// there, so what is summed is the same. In float16 each tensor has a scale of its own, found each
// time on the device (half_scale.h).

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/engine/cuda/cuda_kernels.h"
#include "worker/engine/cuda/cuda_operators.h"
#include "worker/engine/cuda/cuda_status.h"
#include "worker/engine/half_scale.h"

namespace poseidon {
namespace {

constexpr std::size_t kMaxCandidates = 4;
/// Of those that may have to step in, unless the first wants more anyway.
constexpr std::size_t kStandInWorkspaceBytes = std::size_t{256} << 20;
constexpr std::size_t kSliceAlignmentBytes = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kSliceAlignmentBytes - 1) / kSliceAlignmentBytes * kSliceAlignmentBytes;
}

/// How cuDNN sees a layer's tensors.
struct Form {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;

  /// 16 bits, and not rounded values kept as float32.
  bool is_narrow() const { return type != CUDNN_DATA_FLOAT; }
  bool has_channels_last() const { return format == CUDNN_TENSOR_NHWC; }
};

cuda::Planes planes_of(std::int64_t samples, const Shape& shape) {
  return {.samples = samples, .channels = shape[0], .plane = shape[1] * shape[2]};
}
std::int64_t elements_of(const cuda::Planes& p) { return p.samples * p.channels * p.plane; }

/// cuDNN's handles, made empty; may be set again.
class Tensor {
 public:
  Tensor() = default;
  ~Tensor() {
    if (handle_ != nullptr) static_cast<void>(cudnnDestroyTensorDescriptor(handle_));
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  absl::Status set(const Form& form, std::int64_t batch, const Shape& shape) {
    if (handle_ == nullptr) POSEIDON_CUDA(cudnnCreateTensorDescriptor(&handle_));
    POSEIDON_CUDA(cudnnSetTensor4dDescriptor(
        handle_, form.format, form.type, static_cast<int>(batch), static_cast<int>(shape[0]),
        static_cast<int>(shape[1]), static_cast<int>(shape[2])));
    return absl::OkStatus();
  }
  cudnnTensorDescriptor_t handle() const { return handle_; }

 private:
  cudnnTensorDescriptor_t handle_ = nullptr;
};

class Filter {
 public:
  Filter() = default;
  ~Filter() {
    if (handle_ != nullptr) static_cast<void>(cudnnDestroyFilterDescriptor(handle_));
  }
  Filter(const Filter&) = delete;
  Filter& operator=(const Filter&) = delete;
  absl::Status set(const Form& form, const Shape& shape) {
    if (handle_ == nullptr) POSEIDON_CUDA(cudnnCreateFilterDescriptor(&handle_));
    POSEIDON_CUDA(cudnnSetFilter4dDescriptor(
        handle_, form.type, form.format, static_cast<int>(shape[0]), static_cast<int>(shape[1]),
        static_cast<int>(shape[2]), static_cast<int>(shape[3])));
    return absl::OkStatus();
  }
  cudnnFilterDescriptor_t handle() const { return handle_; }

 private:
  cudnnFilterDescriptor_t handle_ = nullptr;
};

class Rule {
 public:
  Rule() = default;
  ~Rule() {
    if (handle_ != nullptr) static_cast<void>(cudnnDestroyConvolutionDescriptor(handle_));
  }
  Rule(const Rule&) = delete;
  Rule& operator=(const Rule&) = delete;
  absl::Status set(const LayerSpec& layer, cudnnMathType_t math) {
    if (handle_ == nullptr) POSEIDON_CUDA(cudnnCreateConvolutionDescriptor(&handle_));
    POSEIDON_CUDA(cudnnSetConvolution2dDescriptor(
        handle_, static_cast<int>(layer.pad_h), static_cast<int>(layer.pad_w),
        static_cast<int>(layer.stride_h), static_cast<int>(layer.stride_w), /*dilation_h=*/1,
        /*dilation_w=*/1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    POSEIDON_CUDA(cudnnSetConvolutionGroupCount(handle_, static_cast<int>(layer.groups)));
    POSEIDON_CUDA(cudnnSetConvolutionMathType(handle_, math));
    return absl::OkStatus();
  }
  cudnnConvolutionDescriptor_t handle() const { return handle_; }

 private:
  cudnnConvolutionDescriptor_t handle_ = nullptr;
};

/// Whether it forms sums of products and nothing else: no transform (Winograd, FFT).
bool sums_products(cudnnConvolutionFwdAlgo_t algorithm) {
  return algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM ||
         algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM ||
         algorithm == CUDNN_CONVOLUTION_FWD_ALGO_GEMM;
}
bool sums_products(cudnnConvolutionBwdFilterAlgo_t algorithm) {
  return algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 ||
         algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 ||
         algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3;
}
bool sums_products(cudnnConvolutionBwdDataAlgo_t algorithm) {
  return algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 ||
         algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
}

/// One of the three computations: the algorithms that may do it, the best first.
template <typename Algorithm>
class Candidates {
 public:
  /// `results`: of the heuristics, which do not always know what cuDNN will say: `workspace_bytes`
  /// (algorithm) asks it, 0 bytes or more, or an error. May be called again.
  template <typename Result, typename WorkspaceBytes>
  absl::Status choose(const std::vector<Result>& results, const Form& form, std::size_t limit,
                      const WorkspaceBytes& workspace_bytes) {
    list_.clear();
    current_ = 0;
    for (const Result& result : results) {
      if (list_.size() == kMaxCandidates) break;
      if (result.status != CUDNN_STATUS_SUCCESS) continue;
      if (result.determinism != CUDNN_DETERMINISTIC) continue;
      // What transforms have between is larger than the sums, whose size is all that limits know.
      if (form.type == CUDNN_DATA_HALF && !sums_products(result.algo)) continue;
      const absl::StatusOr<std::size_t> bytes = workspace_bytes(result.algo);
      if (!bytes.ok() || *bytes > limit) continue;
      const auto same = [&](const Candidate& one) { return one.algorithm == result.algo; };
      if (std::any_of(list_.begin(), list_.end(), same)) continue;  // with other arithmetic
      list_.push_back({result.algo, *bytes});
      if (list_.size() == 1) limit = std::max(*bytes, kStandInWorkspaceBytes);
    }
    if (list_.empty()) {  // with `limit` as it came
      return absl::InternalError(
          absl::StrCat("cuDNN has no algorithm that gives the same bits again in ", limit >> 20,
                       " MiB of workspace; use a smaller batch_size, or micro_batches"));
    }
    return absl::OkStatus();
  }

  /// The largest need of all, as any may have to step in.
  std::size_t workspace_bytes() const {
    std::size_t most = 0;
    for (const Candidate& one : list_) most = std::max(most, one.workspace_bytes);
    return most;
  }

  /// call(algorithm, bytes of workspace) -> cudnnStatus_t. A refusal is one of the algorithm; so is
  /// any other failure that leaves the GPU well, which is worth a word.
  template <typename Call>
  absl::Status run(const CudaContext& context, const LayerSpec& layer, std::string_view what,
                   const Call& call) {
    POSEIDON_RETURN_IF_ERROR(launch_status(what));  // of what made the factors
    for (;; ++current_) {
      const Candidate& one = list_[current_];
      const cudnnStatus_t status = call(one.algorithm, one.workspace_bytes);
      if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
      const absl::Status failure = cuda_status(status, what);
      if (!context.is_well() || current_ + 1 == list_.size()) return failure;
      if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) continue;
      context.warn(absl::StrCat("layer '", layer.name, "': another algorithm takes the place of ",
                                static_cast<int>(one.algorithm), ": ", failure.message()));
    }
  }

 private:
  struct Candidate {
    Algorithm algorithm;
    std::size_t workspace_bytes;
  };
  std::vector<Candidate> list_;
  std::size_t current_ = 0;
};

class Convolution final : public LayerOperator {
 public:
  Convolution(const LayerSpec& layer, const OperatorOptions& options, CudaContext& context)
      : layer_(layer),
        samples_(options.batch_size),
        narrow_type_(narrow_type(context.precision())),
        rounds_(narrow_type_ != CUDNN_DATA_FLOAT),
        scales_(narrow_type_ == CUDNN_DATA_HALF),
        input_is_narrow_(options.input_layout() == Layout::kBfloat16),
        output_is_narrow_(options.output_layout == Layout::kBfloat16),
        relu_(options.relu == ReluShare::kForward),
        wants_input_gradient_(options.wants_input_gradient),
        input_planes_(planes_of(samples_, layer.input_shape)),
        output_planes_(planes_of(samples_, layer.output_shape)),
        weight_planes_(weight_planes(layer.parameters.front().shape)),
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
    // True float32 excludes TF32, which the default lets cuDNN take.
    const bool is_true = context_.precision() == CudaPrecision::kFloat32;
    if (!rounds_) return open_as({.math = is_true ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH});
    absl::Status refused;
    for (const cudnnTensorFormat_t format : {CUDNN_TENSOR_NHWC, CUDNN_TENSOR_NCHW}) {
      refused = open_as({.type = narrow_type_, .format = format, .math = CUDNN_TENSOR_OP_MATH});
      // Without memory there is no workspace for the layers before, either.
      if (refused.ok() || absl::IsResourceExhausted(refused)) return refused;
      static_cast<void>(cudaGetLastError());  // or the next launch would report it
      if (!input_is_narrow_ && !output_is_narrow_) continue;
      if (!context_.is_well()) return refused;
      warn_once(refused_in_place,
                absl::StrCat("layer '", layer_.name,
                             "' and perhaps others stand between conversions, which is slower: ",
                             refused.message()));
      return absl::UnimplementedError(refused.message());
    }
    warn_once(refused_in_16_bits,
              absl::StrCat("layer '", layer_.name, "' and perhaps others are rounded to ",
                           scales_ ? "fp16" : "bf16",
                           " but computed with in float32, which is slower: ", refused.message()));
    // TF32 changes no value that is rounded, but the sums and differences of some algorithms.
    return open_as({.math = CUDNN_FMA_MATH});
  }

  absl::Status forward(const ForwardArgs& args) override {
    return in_layer(layer_.name, run_forward(args));
  }
  absl::Status backward(const BackwardArgs& args) override {
    return in_layer(layer_.name, run_backward(args));
  }

 private:
  // ---- planning ----

  /// A network has hundreds of such layers.
  void warn_once(std::atomic<bool>& has_warned, const std::string& message) const {
    if (!has_warned.exchange(true)) context_.warn(message);
  }
  static inline std::atomic<bool> refused_in_place{false}, refused_in_16_bits{false};

  static cuda::Planes weight_planes(const Shape& shape) {
    return {.samples = shape[0], .channels = shape[1], .plane = shape[2] * shape[3]};
  }

  /// All three computations, with tensors of one form. May be called again.
  absl::Status open_as(const Form& form) {
    form_ = form;
    POSEIDON_RETURN_IF_ERROR(input_.set(form, samples_, layer_.input_shape));
    POSEIDON_RETURN_IF_ERROR(output_.set(form, samples_, layer_.output_shape));
    POSEIDON_RETURN_IF_ERROR(weight_.set(form, layer_.parameters.front().shape));
    POSEIDON_RETURN_IF_ERROR(rule_.set(layer_, form.math));
    POSEIDON_RETURN_IF_ERROR(choose_forward());
    POSEIDON_RETURN_IF_ERROR(choose_of_weight());
    if (wants_input_gradient_) POSEIDON_RETURN_IF_ERROR(choose_of_input());
    algorithm_bytes_ = aligned(std::max(
        {forward_.workspace_bytes(), of_weight_.workspace_bytes(), of_input_.workspace_bytes()}));
    std::size_t bytes =
        algorithm_bytes_ + aligned(cuda::channel_sums_scratch(images_) * sizeof(double));
    if (rounds_) {
      bytes += input_place_bytes() + output_place_bytes() + rounded_bytes(weight_planes_) +
               aligned(sizeof(Scales));
    }
    POSEIDON_RETURN_IF_ERROR(context_.reserve_workspace(bytes));
    return form.is_narrow() ? try_out() : absl::OkStatus();
  }

  /// Whether cuDNN does what its heuristics say: with whatever the workspace holds, and tensors of
  /// the moment for those that it computes with where they will lie.
  absl::Status try_out() {
    DeviceMemory input{nullptr, nullptr}, output{nullptr, nullptr};
    if (input_is_narrow_) {
      POSEIDON_ASSIGN_OR_RETURN(input, context_.allocate(2 * elements_of(input_planes_)));
    }
    if (output_is_narrow_) {
      POSEIDON_ASSIGN_OR_RETURN(output, context_.allocate(2 * elements_of(output_planes_)));
    }
    absl::Status status = call_all(input != nullptr ? input.get() : input_place(),
                                   output != nullptr ? output.get() : output_place());
    // cudaFree() would wait without a deadline.
    status.Update(context_.wait(context_.compute()));
    return status;
  }

  absl::Status call_all(void* input, void* output) {
    POSEIDON_RETURN_IF_ERROR(call_forward(input, weight_place(), output));
    POSEIDON_RETURN_IF_ERROR(call_of_weight(input, output, weight_place()));
    if (!wants_input_gradient_) return absl::OkStatus();
    return call_of_input(weight_place(), output, input);
  }

  absl::Status choose_forward() {
    int count = 0;
    POSEIDON_CUDA(cudnnGetConvolutionForwardAlgorithmMaxCount(context_.cudnn(), &count));
    std::vector<cudnnConvolutionFwdAlgoPerf_t> results(static_cast<std::size_t>(count));
    POSEIDON_CUDA(cudnnGetConvolutionForwardAlgorithm_v7(
        context_.cudnn(), input_.handle(), weight_.handle(), rule_.handle(), output_.handle(),
        count, &count, results.data()));
    results.resize(static_cast<std::size_t>(count));
    return forward_.choose(results, form_, context_.workspace_limit(),
                           [&](cudnnConvolutionFwdAlgo_t algorithm) -> absl::StatusOr<std::size_t> {
                             std::size_t bytes = 0;
                             POSEIDON_CUDA(cudnnGetConvolutionForwardWorkspaceSize(
                                 context_.cudnn(), input_.handle(), weight_.handle(),
                                 rule_.handle(), output_.handle(), algorithm, &bytes));
                             return bytes;
                           });
  }

  absl::Status choose_of_weight() {
    int count = 0;
    POSEIDON_CUDA(cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(context_.cudnn(), &count));
    std::vector<cudnnConvolutionBwdFilterAlgoPerf_t> results(static_cast<std::size_t>(count));
    POSEIDON_CUDA(cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        context_.cudnn(), input_.handle(), output_.handle(), rule_.handle(), weight_.handle(),
        count, &count, results.data()));
    results.resize(static_cast<std::size_t>(count));
    return of_weight_.choose(
        results, form_, context_.workspace_limit(),
        [&](cudnnConvolutionBwdFilterAlgo_t algorithm) -> absl::StatusOr<std::size_t> {
          std::size_t bytes = 0;
          POSEIDON_CUDA(cudnnGetConvolutionBackwardFilterWorkspaceSize(
              context_.cudnn(), input_.handle(), output_.handle(), rule_.handle(), weight_.handle(),
              algorithm, &bytes));
          return bytes;
        });
  }

  absl::Status choose_of_input() {
    int count = 0;
    POSEIDON_CUDA(cudnnGetConvolutionBackwardDataAlgorithmMaxCount(context_.cudnn(), &count));
    std::vector<cudnnConvolutionBwdDataAlgoPerf_t> results(static_cast<std::size_t>(count));
    POSEIDON_CUDA(cudnnGetConvolutionBackwardDataAlgorithm_v7(
        context_.cudnn(), weight_.handle(), output_.handle(), rule_.handle(), input_.handle(),
        count, &count, results.data()));
    results.resize(static_cast<std::size_t>(count));
    return of_input_.choose(
        results, form_, context_.workspace_limit(),
        [&](cudnnConvolutionBwdDataAlgo_t algorithm) -> absl::StatusOr<std::size_t> {
          std::size_t bytes = 0;
          POSEIDON_CUDA(cudnnGetConvolutionBackwardDataWorkspaceSize(
              context_.cudnn(), weight_.handle(), output_.handle(), rule_.handle(), input_.handle(),
              algorithm, &bytes));
          return bytes;
        });
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
  std::size_t rounded_bytes(const cuda::Planes& planes) const {
    return aligned(static_cast<std::size_t>(elements_of(planes)) *
                   (form_.is_narrow() ? 2 : sizeof(float)));
  }
  std::size_t input_place_bytes() const {
    return input_is_narrow_ ? 0 : rounded_bytes(input_planes_);
  }
  std::size_t output_place_bytes() const {
    return output_is_narrow_ ? 0 : rounded_bytes(output_planes_);
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
    return reinterpret_cast<Scales*>(weight_place() + rounded_bytes(weight_planes_));
  }

  /// What cuDNN shall read: the tensor itself, or rounded to `place`; in float16 with `scale`, by
  /// which magnitudes stay below 2^limit.
  const void* rounded(const float* from, bool is_narrow, std::byte* place,
                      const cuda::Planes& planes, HalfScale* scale, int limit) const {
    if (!rounds_ || is_narrow) return from;
    const cudaStream_t stream = context_.compute();
    const std::int64_t elements = elements_of(planes);
    auto* const kept = reinterpret_cast<float*>(place);
    if (scales_) cuda::half_scale_of(stream, from, elements, limit, scales()->parts, scale);
    if (form_.is_narrow()) {
      cuda::narrow(stream, kernel_type(), planes, form_.has_channels_last(), from, scale, place);
    } else if (scales_) {
      cuda::round_to_float16(stream, from, scale, kept, elements);
    } else {
      cuda::round_to_bfloat16(stream, from, kept, elements);
    }
    return place;
  }
  /// Where cuDNN shall write what `deliver` brings to `to`.
  void* target(float* to, bool is_narrow, std::byte* place) const {
    return form_.is_narrow() && !is_narrow ? static_cast<void*>(place) : to;
  }
  /// The scales: of the factors of which `place` has the products' sums.
  void deliver(const std::byte* place, float* to, const cuda::Planes& planes,
               const cuda::NarrowScales& scales, const cuda::Epilogue& epilogue = {}) const {
    if (!form_.is_narrow()) return;
    cuda::widen(context_.compute(), kernel_type(), planes, form_.has_channels_last(), place, scales,
                epilogue, to);
  }
  cuda::NarrowType kernel_type() const {
    return scales_ ? cuda::NarrowType::kFloat16 : cuda::NarrowType::kBfloat16;
  }

  // ---- cuDNN's calls ----

  absl::Status call_forward(const void* x, const void* w, void* y) {
    return forward_.run(context_, layer_, "cudnnConvolutionForward",
                        [&](cudnnConvolutionFwdAlgo_t algorithm, std::size_t bytes) {
                          return cudnnConvolutionForward(context_.cudnn(), &kOne, input_.handle(),
                                                         x, weight_.handle(), w, rule_.handle(),
                                                         algorithm, context_.workspace(), bytes,
                                                         &kZero, output_.handle(), y);
                        });
  }
  absl::Status call_of_weight(const void* x, const void* dy, void* dw) {
    return of_weight_.run(context_, layer_, "cudnnConvolutionBackwardFilter",
                          [&](cudnnConvolutionBwdFilterAlgo_t algorithm, std::size_t bytes) {
                            return cudnnConvolutionBackwardFilter(
                                context_.cudnn(), &kOne, input_.handle(), x, output_.handle(), dy,
                                rule_.handle(), algorithm, context_.workspace(), bytes, &kZero,
                                weight_.handle(), dw);
                          });
  }
  absl::Status call_of_input(const void* w, const void* dy, void* dx) {
    return of_input_.run(context_, layer_, "cudnnConvolutionBackwardData",
                         [&](cudnnConvolutionBwdDataAlgo_t algorithm, std::size_t bytes) {
                           return cudnnConvolutionBackwardData(
                               context_.cudnn(), &kOne, weight_.handle(), w, output_.handle(), dy,
                               rule_.handle(), algorithm, context_.workspace(), bytes, &kZero,
                               input_.handle(), dx);
                         });
  }

  // ---- running ----

  const void* rounded_input(const float* input, int limit) const {
    return rounded(input, input_is_narrow_, input_place(), input_planes_, &scales()->input, limit);
  }
  const void* rounded_weight(const float* weight, int limit) const {
    return rounded(weight, /*is_narrow=*/false, weight_place(), weight_planes_, &scales()->weight,
                   limit);
  }

  absl::Status run_forward(const ForwardArgs& args) {
    const void* const x = rounded_input(args.inputs[0], forward_limits_.input);
    const void* const w = rounded_weight(args.parameters, forward_limits_.weight);
    POSEIDON_RETURN_IF_ERROR(
        call_forward(x, w, target(args.output, output_is_narrow_, output_place())));
    const cuda::Epilogue epilogue = {
        .bias = has_bias() ? args.parameters + elements_of(weight_planes_) : nullptr,
        .relu = relu_};
    if (form_.is_narrow() && !output_is_narrow_) {
      deliver(output_place(), args.output, output_planes_, {&scales()->input, &scales()->weight},
              epilogue);
    } else if (has_bias()) {
      cuda::add_bias(context_.compute(), images_, epilogue, args.output);
    }
    return launch_status("convolution");
  }

  absl::Status run_backward(const BackwardArgs& args) {
    const void* const dy = rounded(args.output_gradient, output_is_narrow_, output_place(),
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
    const void* const x = rounded_input(args.forward.inputs[0], backward_limits_.input);
    POSEIDON_RETURN_IF_ERROR(call_of_weight(
        x, dy, target(args.parameter_gradients, /*is_narrow=*/false, weight_place())));
    deliver(weight_place(), args.parameter_gradients, weight_planes_,
            {&scales()->input, &scales()->gradient});
    return absl::OkStatus();
  }

  absl::Status run_of_input(const BackwardArgs& args, const void* dy) {
    const void* const w = rounded_weight(args.forward.parameters, backward_limits_.weight);
    float* const dx = args.input_gradients[0];
    POSEIDON_RETURN_IF_ERROR(call_of_input(w, dy, target(dx, input_is_narrow_, input_place())));
    if (!input_is_narrow_) {
      deliver(input_place(), dx, input_planes_, {&scales()->weight, &scales()->gradient});
    }
    return absl::OkStatus();
  }

  bool has_bias() const { return layer_.parameters.size() > 1; }

  static constexpr float kOne = 1.0f, kZero = 0.0f;

  const LayerSpec layer_;
  const std::int64_t samples_;
  const cudnnDataType_t narrow_type_;  ///< of rounded tensors; float where none is rounded
  const bool rounds_, scales_;
  const bool input_is_narrow_, output_is_narrow_;  ///< in kBfloat16, their gradients too
  const bool relu_;                                ///< of the output, behind the bias
  const bool wants_input_gradient_;
  const cuda::Planes input_planes_, output_planes_, weight_planes_;  // of the whole batch
  const cuda::Images images_;                                        // the output's
  CudaContext& context_;
  /// In float16: below which powers of two the factors are kept.
  struct Limits {
    int input, weight;
  };
  Limits forward_limits_{}, backward_limits_{};
  int gradient_limit_ = 0;
  Tensor input_, output_;
  Filter weight_;
  Rule rule_;
  Form form_;
  Candidates<cudnnConvolutionFwdAlgo_t> forward_;
  Candidates<cudnnConvolutionBwdFilterAlgo_t> of_weight_;
  Candidates<cudnnConvolutionBwdDataAlgo_t> of_input_;
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
