// To and from float16, each tensor with a scale of its own (worker/engine/half_scale.h).

#include <cuda_fp16.h>

#include "worker/engine/cuda/cuda_kernels.h"
#include "worker/engine/cuda/launch.cuh"

namespace poseidon::cuda {
namespace {

static_assert(kMagnitudeParts == kThreads, "one block compares all parts");

/// The block's largest value, for its thread 0. All threads must call it; a block has kThreads.
__device__ std::uint32_t block_max(std::uint32_t value) {
  __shared__ std::uint32_t of_warps[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value = max(value, __shfl_down_sync(0xFFFFFFFFu, value, offset));
  }
  __syncthreads();  // who called before may still read
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  std::uint32_t largest = 0;
  if (threadIdx.x == 0) {
    for (const std::uint32_t one : of_warps) largest = max(largest, one);
  }
  return largest;
}

/// Magnitudes of floats are in the order of their bits, infinity and then NaNs above all others.
__global__ void magnitude_part_kernel(const float* in, std::int64_t size, std::uint32_t* parts) {
  std::uint32_t largest = 0;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    largest = max(largest, __float_as_uint(in[i]) & 0x7FFFFFFFu);
  }
  largest = block_max(largest);
  if (threadIdx.x == 0) parts[blockIdx.x] = largest;
}

__global__ void half_scale_kernel(const std::uint32_t* parts, unsigned count, int limit,
                                  HalfScale* out) {
  const std::uint32_t largest = block_max(threadIdx.x < count ? parts[threadIdx.x] : 0);
  if (threadIdx.x == 0) *out = half_scale(largest, limit);
}

__global__ void to_float16_kernel(const float* in, const HalfScale* scale, __half* out,
                                  std::int64_t size) {
  const float factor = scale->scale;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    out[i] = __float2half_rn(in[i] * factor);
  }
}

__global__ void from_float16_kernel(const __half* in, const HalfScale* left, const HalfScale* right,
                                    float* out, std::int64_t size) {
  const float first = left->inverse, second = right->inverse;  // their product may be no float
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    out[i] = __half2float(in[i]) * first * second;
  }
}

__global__ void round_to_float16_kernel(const float* in, const HalfScale* scale, float* out,
                                        std::int64_t size) {
  const float factor = scale->scale, inverse = scale->inverse;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    out[i] = __half2float(__float2half_rn(in[i] * factor)) * inverse;
  }
}

}  // namespace

void half_scale_of(cudaStream_t stream, const float* in, std::int64_t size, int limit,
                   std::uint32_t* parts, HalfScale* out) {
  const unsigned count = min(blocks_for(size), static_cast<unsigned>(kMagnitudeParts));
  launch(stream, count, kThreads, magnitude_part_kernel, in, size, parts);
  launch(stream, 1, kThreads, half_scale_kernel, parts, count, limit, out);
}

void to_float16(cudaStream_t stream, const float* in, const HalfScale* scale, void* out,
                std::int64_t size) {
  launch(stream, blocks_for(size), kThreads, to_float16_kernel, in, scale,
         static_cast<__half*>(out), size);
}

void from_float16(cudaStream_t stream, const void* in, const HalfScale* left,
                  const HalfScale* right, float* out, std::int64_t size) {
  launch(stream, blocks_for(size), kThreads, from_float16_kernel, static_cast<const __half*>(in),
         left, right, out, size);
}

void round_to_float16(cudaStream_t stream, const float* in, const HalfScale* scale, float* out,
                      std::int64_t size) {
  launch(stream, blocks_for(size), kThreads, round_to_float16_kernel, in, scale, out, size);
}

}  // namespace poseidon::cuda
