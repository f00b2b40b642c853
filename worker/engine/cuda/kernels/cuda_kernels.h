#pragma once

// The kernels: layers and steps for which no library call does exactly what we promise.
//
// Each function queues on `stream` and returns; call launch_status() afterwards. All pointers are
// device pointers. Tensors between layers have the named layout, any except kDevice, and begin at
// multiples of 16 bytes; without a named layout they are plain. Every element is written by one
// thread, in an order of operations that depends only on the sizes, so the same job gives the same
// bits on every GPU. Nothing is contracted into fused multiply-adds (compiled with -fmad=false), so
// that each element rounds as in the CPU's loops, except averages and LRN, which agree to a few
// units in the last place.
//
// Called by: the operators of worker/engine/cuda. Calls: nothing.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/tensor/kernels.h"
#include "worker/engine/half_scale.h"
#include "worker/engine/layout.h"

namespace poseidon::cuda {

// ---- element by element (pointwise_kernels.cu); `out` may be an input ----

/// out = in <= 0 ? 0 : in, so that a NaN stays one.
void relu(cudaStream_t stream, Layout layout, const float* in, float* out, std::int64_t size);
/// out = forward_output <= 0 ? 0 : gradient.
void relu_gradient(cudaStream_t stream, Layout layout, const float* forward_output,
                   const float* gradient, float* out, std::int64_t size);
void sum(cudaStream_t stream, Layout layout, const float* a, const float* b, float* out,
         std::int64_t size);
void sum_relu(cudaStream_t stream, Layout layout, const float* a, const float* b, float* out,
              std::int64_t size);
/// dropout_mask.h; `layer_seed` is mix_seed(job's seed, hash of the layer's name).
void dropout(cudaStream_t stream, std::uint64_t layer_seed, std::uint64_t first_sample,
             double ratio, std::int64_t samples, std::int64_t elements, const float* in,
             float* out);

/// What becomes of sums in the pass that keeps them.
struct Epilogue {
  const float* bias = nullptr;  ///< per channel, added; null: none
  bool relu = false;            ///< of which then the ReLU is taken
};

// ---- other forms of a tensor (narrow_kernels.cu); scales are in the device's memory ----

/// What elements become. kFloat32 is what they are: then only places change.
enum class NarrowType { kBfloat16, kFloat16, kFloat32 };
/// samples x channels x plane, one after the other as plain tensors lie; a weight's outputs are its
/// samples.
struct Planes {
  std::int64_t samples, channels, plane;
};
/// Of the two tensors of whose products sums are formed; null but for float16.
struct NarrowScales {
  const HalfScale* left;
  const HalfScale* right;
};
/// Scaled (float16), then rounded to nearest even (16 bits). With `channels_last` out is samples x
/// plane x channels.
void narrow(cudaStream_t stream, NarrowType type, const Planes& planes, bool channels_last,
            const float* in, const HalfScale* scale, void* out);
/// Sums of products of two tensors with these scales, without them. With `channels_last` in is
/// samples x plane x channels.
void widen(cudaStream_t stream, NarrowType type, const Planes& planes, bool channels_last,
           const void* in, const NarrowScales& scales, const Epilogue& epilogue, float* out);

/// To the nearest bfloat16, ties to even, kept as float.
void round_to_bfloat16(cudaStream_t stream, const float* in, float* out, std::int64_t size);
/// What narrow() makes of it in float16, as float and without the scale.
void round_to_float16(cudaStream_t stream, const float* in, const HalfScale* scale, float* out,
                      std::int64_t size);

inline constexpr std::int64_t kMagnitudeParts = 256;
/// The scale of the tensor for this limit. `parts`: scratch of kMagnitudeParts.
void half_scale_of(cudaStream_t stream, const float* in, std::int64_t size, int limit,
                   std::uint32_t* parts, HalfScale* out);

// ---- windows (window_kernels.cu) ----

/// Sizes of a pooling; an image has fewer than 2^31 elements. Of `planes`, samples times channels,
/// as many lie side by side: all channels of a sample where channels are last, 1 in kPlain.
struct PoolWindow {
  Layout layout;
  std::int64_t planes, side_by_side, height, width, out_height, out_width;
  std::int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
  bool count_padding;
};
/// Of what max pooling keeps for its gradient, per output.
std::int64_t choice_bytes(const PoolWindow& window);
/// `chosen`: per output, in the outputs' order, which position of its window has the largest
/// element, the first of equal ones, the last of NaNs; choice_bytes() each.
void max_pool(cudaStream_t stream, const PoolWindow& window, const float* in, float* out,
              void* chosen);
void max_pool_gradient(cudaStream_t stream, const PoolWindow& window, const float* gradient,
                       const void* chosen, float* in_gradient);
void average_pool(cudaStream_t stream, const PoolWindow& window, const float* in, float* out);
void average_pool_gradient(cudaStream_t stream, const PoolWindow& window, const float* gradient,
                           float* in_gradient);

/// Across channels: scale = k + slope * sum of x^2 over channels c - half to c + half,
/// y = x scale^-beta. slope is alpha / local_size. A channel's neighbour is `stride` elements away.
struct LrnSizes {
  Layout layout;
  std::int64_t samples, channels, plane, stride, half;
  float slope, beta, k;
};
void lrn(cudaStream_t stream, const LrnSizes& sizes, const float* in, float* scale, float* out);
void lrn_gradient(cudaStream_t stream, const LrnSizes& sizes, const float* in, const float* scale,
                  const float* gradient, float* in_gradient);

// ---- channel by channel (channel_kernels.cu); sums are in double ----

/// A tensor of images, or of vectors with a plane of 1. `valid` samples count in sums.
struct Images {
  std::int64_t samples, channels, plane, valid;
  Layout layout = Layout::kPlain;
};
/// In place; with a bias.
void add_bias(cudaStream_t stream, const Images& images, const Epilogue& epilogue, float* values);
/// Elements of double scratch that the functions below need, for any number of valid samples.
std::size_t channel_sums_scratch(const Images& images);

/// bias_gradient[c] = sum of gradient over valid samples and the plane.
void channel_sums(cudaStream_t stream, const Images& images, const float* gradient, double* scratch,
                  float* bias_gradient);
/// What batch normalisation keeps from forward to backward, per channel.
struct BatchNormState {
  double* mean;
  double* inverse;  ///< 1 / sqrt(variance + epsilon)
  /// Five per channel, end to end: mean, scale and shift of forward, two more of backward.
  float* factors;
};
struct BatchNormRule {
  double epsilon, momentum;
  bool relu;  ///< what is normalised goes through a ReLU behind it, and its gradient likewise
};
/// Statistics of the valid samples; moves the running ones; normalises all samples.
/// `parameters`: weights, then biases. `statistics`: running means, then variances.
void batch_norm(cudaStream_t stream, const Images& images, const BatchNormRule& rule,
                const float* in, const float* parameters, float* statistics, double* scratch,
                const BatchNormState& state, float* out);
/// With the running statistics.
void batch_norm_test(cudaStream_t stream, const Images& images, const BatchNormRule& rule,
                     const float* in, const float* parameters, const float* statistics,
                     const BatchNormState& state, float* out);
/// `in_gradient` may be null; it is 0 for samples that do not count.
void batch_norm_gradient(cudaStream_t stream, const Images& images, const BatchNormRule& rule,
                         const float* in, const float* gradient, const float* parameters,
                         double* scratch, const BatchNormState& state, float* parameter_gradients,
                         float* in_gradient);

// ---- sums (sum_kernels.cu), in double ----

/// out[c] = sum over rows of in[row][c].
void column_sums(cudaStream_t stream, const float* in, std::int64_t rows, std::int64_t columns,
                 float* out);

/// Shares of the label and of every class (smoothing) in what a sample should get.
struct LossRule {
  std::int64_t samples, valid, classes;
  double for_label, for_each;
};
/// log_sum: per sample, kept for the gradient.
void cross_entropy(cudaStream_t stream, const LossRule& rule, const float* scores,
                   const std::int32_t* labels, double* log_sum, float* loss);
void cross_entropy_gradient(cudaStream_t stream, const LossRule& rule, double weight,
                            const float* scores, const std::int32_t* labels, const double* log_sum,
                            float* gradient);
void accuracy(cudaStream_t stream, const LossRule& rule, const float* scores,
              const std::int32_t* labels, float* hits);

// ---- the optimizer (optimizer_kernels.cu): common/tensor/optimizer_rules.h on the device ----

struct StepArrays {
  const float* gradient;
  float* parameters;
  float* state0;  ///< or null
  float* state1;
  std::int64_t size;
};
void sgd_step(cudaStream_t stream, const SgdFactors& factors, bool has_momentum, bool nesterov,
              const StepArrays& arrays);
void adam_step(cudaStream_t stream, const AdamFactors& factors, bool decoupled,
               const StepArrays& arrays);

inline constexpr std::int64_t kSquareParts = 256;
/// parts[i]: a fixed share of the sum of squares; their sum in order is the whole.
void square_sums(cudaStream_t stream, const float* in, std::int64_t size, double* parts);

}  // namespace poseidon::cuda
