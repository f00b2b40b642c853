// Kernels in which every output element depends on its own input elements alone.

#include "common/random.h"
#include "worker/engine/cuda/cuda_kernels.h"
#include "worker/engine/cuda/launch.cuh"

namespace poseidon::cuda {
namespace {

__global__ void relu_kernel(const float* in, float* out, std::int64_t size) {
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const float value = in[i];
    out[i] = value <= 0.0f ? 0.0f : value;
  }
}

__global__ void relu_gradient_kernel(const float* forward_output, const float* gradient, float* out,
                                     std::int64_t size) {
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    out[i] = forward_output[i] <= 0.0f ? 0.0f : gradient[i];
  }
}

__global__ void sum_kernel(const float* a, const float* b, float* out, std::int64_t size) {
  for (std::int64_t i = first_item(); i < size; i += item_stride()) out[i] = a[i] + b[i];
}

__global__ void add_bias_kernel(float* values, const float* bias, std::int64_t planes,
                                std::int64_t channels, std::int64_t plane) {
  for (std::int64_t p = blockIdx.x; p < planes; p += gridDim.x) {
    const float addend = bias[p % channels];
    float* const at = values + p * plane;
    for (std::int64_t i = threadIdx.x; i < plane; i += blockDim.x) at[i] += addend;
  }
}

// Rows of a vector: neighbours have different biases.
__global__ void add_row_bias_kernel(float* values, const float* bias, std::int64_t size,
                                    std::int64_t columns) {
  for (std::int64_t i = first_item(); i < size; i += item_stride()) values[i] += bias[i % columns];
}

__global__ void dropout_kernel(std::uint64_t layer_seed, std::uint64_t first_sample, float ratio,
                               float scale, std::int64_t size, std::int64_t elements,
                               const float* in, float* out) {
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const auto sample = first_sample + static_cast<std::uint64_t>(i / elements);
    SplitMix64 random(mix_seed(layer_seed, sample));
    random.skip(static_cast<std::uint64_t>(i % elements));
    const bool kept = random.uniform() >= ratio;
    out[i] = kept ? in[i] * scale : 0.0f;
  }
}

}  // namespace

void relu(cudaStream_t stream, const float* in, float* out, std::int64_t size) {
  launch(stream, blocks_for(size), kThreads, relu_kernel, in, out, size);
}

void relu_gradient(cudaStream_t stream, const float* forward_output, const float* gradient,
                   float* out, std::int64_t size) {
  launch(stream, blocks_for(size), kThreads, relu_gradient_kernel, forward_output, gradient, out,
         size);
}

void sum(cudaStream_t stream, const float* a, const float* b, float* out, std::int64_t size) {
  launch(stream, blocks_for(size), kThreads, sum_kernel, a, b, out, size);
}

void add_bias(cudaStream_t stream, float* values, const float* bias, std::int64_t samples,
              std::int64_t channels, std::int64_t plane) {
  if (plane == 1) {
    const std::int64_t size = samples * channels;
    launch(stream, blocks_for(size), kThreads, add_row_bias_kernel, values, bias, size, channels);
    return;
  }
  const std::int64_t planes = samples * channels;
  launch(stream, one_block_each(planes), threads_for(plane), add_bias_kernel, values, bias, planes,
         channels, plane);
}

void dropout(cudaStream_t stream, std::uint64_t layer_seed, std::uint64_t first_sample, float ratio,
             std::int64_t samples, std::int64_t elements, const float* in, float* out) {
  const float scale = 1.0f / (1.0f - ratio);
  const std::int64_t size = samples * elements;
  launch(stream, blocks_for(size), kThreads, dropout_kernel, layer_seed, first_sample, ratio, scale,
         size, elements, in, out);
}

}  // namespace poseidon::cuda
