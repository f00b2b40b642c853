// Kernels that sum: scores, columns, squares. Sums are in double and in an order that depends only
// on the sizes.

#include "worker/engine/cuda/kernels/cuda_kernels.h"
#include "worker/engine/cuda/kernels/launch.cuh"

namespace poseidon::cuda {
namespace {

__global__ void column_sums_kernel(const float* in, std::int64_t rows, std::int64_t columns,
                                   float* out) {
  for (std::int64_t c = first_item(); c < columns; c += item_stride()) {
    double total = 0.0;
    for (std::int64_t row = 0; row < rows; ++row) total += in[row * columns + c];
    out[c] = static_cast<float>(total);
  }
}

// ---- scores ----

/// The largest of the block's values, for all its threads.
__device__ float block_largest(float value) {
  __shared__ float of_warps[kThreads / 32];
  __shared__ float largest;
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_down_sync(0xFFFFFFFFu, value, offset));
  }
  __syncthreads();  // an earlier caller may still read it
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) value = fmaxf(value, of_warps[warp]);
    largest = value;
  }
  __syncthreads();
  return largest;
}

// One block per sample. A NaN among the scores is in the sum of exponentials, so in the loss.
__global__ void cross_entropy_kernel(LossRule rule, const float* scores, const std::int32_t* labels,
                                     double* log_sum, float* loss) {
  for (std::int64_t n = blockIdx.x; n < rule.samples; n += gridDim.x) {
    if (n >= rule.valid) {
      if (threadIdx.x == 0) loss[n] = 0.0f;
      continue;
    }
    const float* const own = scores + n * rule.classes;
    float best = own[0];
    for (std::int64_t c = threadIdx.x; c < rule.classes; c += blockDim.x)
      best = fmaxf(best, own[c]);
    // Shifted by the largest score, so that no exponential overflows.
    const double largest = block_largest(best);
    double exponentials = 0.0, all = 0.0;
    for (std::int64_t c = threadIdx.x; c < rule.classes; c += blockDim.x) {
      exponentials += exp(own[c] - largest);
      all += own[c];
    }
    exponentials = block_sum(exponentials);
    all = block_sum(all);
    if (threadIdx.x == 0) {
      const double logarithm = largest + log(exponentials);
      log_sum[n] = logarithm;
      double expected = rule.for_label * own[labels[n]];
      if (rule.for_each > 0.0) expected += rule.for_each * all;
      loss[n] = static_cast<float>(logarithm - expected);
    }
  }
}

__global__ void cross_entropy_gradient_kernel(LossRule rule, double weight, const float* scores,
                                              const std::int32_t* labels, const double* log_sum,
                                              float* gradient) {
  const std::int64_t size = rule.samples * rule.classes;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const std::int64_t n = i / rule.classes, c = i % rule.classes;
    if (n >= rule.valid) {
      gradient[i] = 0.0f;
      continue;
    }
    const double expected = rule.for_each + (c == labels[n] ? rule.for_label : 0.0);
    gradient[i] = static_cast<float>((exp(scores[i] - log_sum[n]) - expected) * weight);
  }
}

// The label's score must beat those before it and reach those after it: the first of equal scores
// is the answer, and scores that are NaN are never a hit.
__global__ void accuracy_kernel(LossRule rule, const float* scores, const std::int32_t* labels,
                                float* hits) {
  for (std::int64_t n = blockIdx.x; n < rule.samples; n += gridDim.x) {
    int is_hit = n < rule.valid ? 1 : 0;
    if (is_hit != 0) {
      const float* const all = scores + n * rule.classes;
      const std::int64_t label = labels[n];
      const float own = all[label];
      for (std::int64_t c = threadIdx.x; c < rule.classes; c += blockDim.x) {
        const bool passes = c < label ? own > all[c] : own >= all[c];
        if (!passes) is_hit = 0;
      }
    }
    is_hit = __syncthreads_and(is_hit);
    if (threadIdx.x == 0) hits[n] = is_hit != 0 ? 1.0f : 0.0f;
  }
}

// ---- squares ----

__global__ void square_sums_kernel(const float* in, std::int64_t size, double* parts) {
  double total = 0.0;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    total += static_cast<double>(in[i]) * in[i];
  }
  total = block_sum(total);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

}  // namespace

void column_sums(cudaStream_t stream, const float* in, std::int64_t rows, std::int64_t columns,
                 float* out) {
  launch(stream, blocks_for(columns), kThreads, column_sums_kernel, in, rows, columns, out);
}

void cross_entropy(cudaStream_t stream, const LossRule& rule, const float* scores,
                   const std::int32_t* labels, double* log_sum, float* loss) {
  launch(stream, one_block_each(rule.samples), kThreads, cross_entropy_kernel, rule, scores, labels,
         log_sum, loss);
}

void cross_entropy_gradient(cudaStream_t stream, const LossRule& rule, double weight,
                            const float* scores, const std::int32_t* labels, const double* log_sum,
                            float* gradient) {
  launch(stream, blocks_for(rule.samples * rule.classes), kThreads, cross_entropy_gradient_kernel,
         rule, weight, scores, labels, log_sum, gradient);
}

void accuracy(cudaStream_t stream, const LossRule& rule, const float* scores,
              const std::int32_t* labels, float* hits) {
  launch(stream, one_block_each(rule.samples), kThreads, accuracy_kernel, rule, scores, labels,
         hits);
}

void square_sums(cudaStream_t stream, const float* in, std::int64_t size, double* parts) {
  launch(stream, static_cast<unsigned>(kSquareParts), kThreads, square_sums_kernel, in, size,
         parts);
}

}  // namespace poseidon::cuda
