// Kernels that sum: batch normalisation, biases, scores. Sums are in double and split into parts
// whose number the sizes alone decide.

#include "worker/engine/cuda/cuda_kernels.h"
#include "worker/engine/cuda/launch.cuh"

namespace poseidon::cuda {
namespace {

/// A channel's sum is split among so many blocks at most, each with at least kPartElements.
constexpr std::int64_t kMaxParts = 32;
constexpr std::int64_t kPartElements = 4096;

/// Of the whole batch, so that how many samples count changes no order.
std::int64_t parts_of(const Images& images) {
  const std::int64_t wanted = images.samples * images.plane / kPartElements;
  const std::int64_t most = images.samples < kMaxParts ? images.samples : kMaxParts;
  return wanted < 1 ? 1 : (wanted > most ? most : wanted);
}

/// Both sums over the samples part, part + parts, ... of channel c, of what `value` gives for an
/// element's index; to partial[part][c] and behind all of those.
template <typename Value>
__device__ void sum_part(const Images& images, std::int64_t parts, double* partial,
                         const Value& value) {
  const std::int64_t work = parts * images.channels;
  for (std::int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const std::int64_t part = w / images.channels, c = w % images.channels;
    double first = 0.0, second = 0.0;
    for (std::int64_t n = part; n < images.valid; n += parts) {
      const std::int64_t begin = (n * images.channels + c) * images.plane;
      for (std::int64_t i = threadIdx.x; i < images.plane; i += blockDim.x) {
        value(begin + i, c, first, second);
      }
    }
    first = block_sum(first);
    second = block_sum(second);
    if (threadIdx.x == 0) {
      partial[w] = first;
      partial[work + w] = second;
    }
  }
}

struct Sums {
  double first, second;
};
__device__ Sums whole_sums(const double* partial, std::int64_t parts, std::int64_t channels,
                           std::int64_t c) {
  Sums sums{0.0, 0.0};
  for (std::int64_t part = 0; part < parts; ++part) {
    sums.first += partial[part * channels + c];
    sums.second += partial[(parts + part) * channels + c];
  }
  return sums;
}

__global__ void plain_part_kernel(Images images, std::int64_t parts, const float* in,
                                  double* partial) {
  sum_part(images, parts, partial,
           [in](std::int64_t i, std::int64_t, double& first, double&) { first += in[i]; });
}

__global__ void plain_whole_kernel(Images images, std::int64_t parts, const double* partial,
                                   float* out) {
  for (std::int64_t c = first_item(); c < images.channels; c += item_stride()) {
    out[c] = static_cast<float>(whole_sums(partial, parts, images.channels, c).first);
  }
}

__global__ void column_sums_kernel(const float* in, std::int64_t rows, std::int64_t columns,
                                   float* out) {
  for (std::int64_t c = first_item(); c < columns; c += item_stride()) {
    double total = 0.0;
    for (std::int64_t row = 0; row < rows; ++row) total += in[row * columns + c];
    out[c] = static_cast<float>(total);
  }
}

// ---- batch normalisation (Ioffe, Szegedy 2015, section 3) ----

// Squares of float are exact in double, so the difference of the two sums loses nothing that
// float32 shows unless the mean is a million deviations.
__global__ void moments_kernel(Images images, std::int64_t parts, const float* in,
                               double* partial) {
  sum_part(images, parts, partial,
           [in](std::int64_t i, std::int64_t, double& first, double& second) {
             const double value = in[i];
             first += value;
             second += value * value;
           });
}

__device__ void follow(float& running, double momentum, double batch) {
  running = static_cast<float>((1.0 - momentum) * running + momentum * batch);
}

__device__ double inverse_deviation(double variance, double epsilon) {
  return 1.0 / sqrt(variance + epsilon);
}

__global__ void statistics_kernel(Images images, std::int64_t parts, BatchNormRule rule,
                                  const double* partial, const float* parameters, float* statistics,
                                  BatchNormState state) {
  const std::int64_t channels = images.channels;
  const auto count = static_cast<double>(images.valid * images.plane);
  for (std::int64_t c = first_item(); c < channels; c += item_stride()) {
    const Sums sums = whole_sums(partial, parts, channels, c);
    const double mean = sums.first / count;
    const double difference = sums.second / count - mean * mean;
    const double variance = difference < 0.0 ? 0.0 : difference;  // a NaN stays one
    const double inverse = inverse_deviation(variance, rule.epsilon);
    state.mean[c] = mean;
    state.inverse[c] = inverse;
    follow(statistics[c], rule.momentum, mean);
    follow(statistics[channels + c], rule.momentum, variance * count / (count - 1.0));
    state.factors[c] = static_cast<float>(mean);
    state.factors[channels + c] = static_cast<float>(parameters[c] * inverse);
    state.factors[2 * channels + c] = parameters[channels + c];
  }
}

__global__ void running_factors_kernel(std::int64_t channels, double epsilon,
                                       const float* parameters, const float* statistics,
                                       float* factors) {
  for (std::int64_t c = first_item(); c < channels; c += item_stride()) {
    factors[c] = statistics[c];
    factors[channels + c] =
        static_cast<float>(parameters[c] * inverse_deviation(statistics[channels + c], epsilon));
    factors[2 * channels + c] = parameters[channels + c];
  }
}

__global__ void normalise_kernel(Images images, const float* in, const float* factors, float* out) {
  const std::int64_t channels = images.channels, planes = images.samples * channels;
  for (std::int64_t p = blockIdx.x; p < planes; p += gridDim.x) {
    const std::int64_t c = p % channels;
    const float mean = factors[c], scale = factors[channels + c], shift = factors[2 * channels + c];
    const std::int64_t begin = p * images.plane;
    for (std::int64_t i = threadIdx.x; i < images.plane; i += blockDim.x) {
      out[begin + i] = (in[begin + i] - mean) * scale + shift;
    }
  }
}

__global__ void gradient_moments_kernel(Images images, std::int64_t parts, const float* in,
                                        const float* gradient, const double* mean,
                                        double* partial) {
  sum_part(images, parts, partial,
           [=](std::int64_t i, std::int64_t c, double& first, double& second) {
             const double dy = gradient[i];
             first += dy;
             second += dy * (in[i] - mean[c]);
           });
}

// With x^ = (x - mean) / deviation: d weight = sum dy x^, d bias = sum dy,
// dx = weight / deviation * (dy - d bias / m - x^ d weight / m).
__global__ void gradient_factors_kernel(Images images, std::int64_t parts, const double* partial,
                                        const float* parameters, BatchNormState state,
                                        float* parameter_gradients) {
  const std::int64_t channels = images.channels;
  const auto count = static_cast<double>(images.valid * images.plane);
  for (std::int64_t c = first_item(); c < channels; c += item_stride()) {
    const Sums sums = whole_sums(partial, parts, channels, c);
    const double inverse = state.inverse[c];
    parameter_gradients[c] = static_cast<float>(sums.second * inverse);
    parameter_gradients[channels + c] = static_cast<float>(sums.first);
    const double scale = parameters[c] * inverse;
    state.factors[c] = static_cast<float>(state.mean[c]);
    state.factors[channels + c] = static_cast<float>(scale);
    state.factors[2 * channels + c] =
        static_cast<float>(-scale * inverse * inverse * sums.second / count);
    state.factors[3 * channels + c] = static_cast<float>(-scale * sums.first / count);
  }
}

__global__ void normalise_gradient_kernel(Images images, const float* in, const float* gradient,
                                          const float* factors, float* in_gradient) {
  const std::int64_t channels = images.channels, planes = images.samples * channels;
  for (std::int64_t p = blockIdx.x; p < planes; p += gridDim.x) {
    const std::int64_t c = p % channels;
    const bool counts = p / channels < images.valid;
    const float mean = factors[c], of_gradient = factors[channels + c];
    const float of_input = factors[2 * channels + c], constant = factors[3 * channels + c];
    const std::int64_t begin = p * images.plane;
    for (std::int64_t i = threadIdx.x; i < images.plane; i += blockDim.x) {
      const float value =
          of_gradient * gradient[begin + i] + (of_input * (in[begin + i] - mean) + constant);
      in_gradient[begin + i] = counts ? value : 0.0f;
    }
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
  __syncthreads();  // who called before may still read
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

std::size_t channel_sums_scratch(const Images& images) {
  return static_cast<std::size_t>(2 * parts_of(images) * images.channels);
}

void channel_sums(cudaStream_t stream, const Images& images, const float* gradient, double* scratch,
                  float* bias_gradient) {
  const std::int64_t parts = parts_of(images);
  launch(stream, one_block_each(parts * images.channels), threads_for(images.plane),
         plain_part_kernel, images, parts, gradient, scratch);
  launch(stream, blocks_for(images.channels), kThreads, plain_whole_kernel, images, parts, scratch,
         bias_gradient);
}

void column_sums(cudaStream_t stream, const float* in, std::int64_t rows, std::int64_t columns,
                 float* out) {
  launch(stream, blocks_for(columns), kThreads, column_sums_kernel, in, rows, columns, out);
}

void batch_norm(cudaStream_t stream, const Images& images, const BatchNormRule& rule,
                const float* in, const float* parameters, float* statistics, double* scratch,
                const BatchNormState& state, float* out) {
  const std::int64_t parts = parts_of(images);
  const unsigned along = threads_for(images.plane);
  launch(stream, one_block_each(parts * images.channels), along, moments_kernel, images, parts, in,
         scratch);
  launch(stream, blocks_for(images.channels), kThreads, statistics_kernel, images, parts, rule,
         scratch, parameters, statistics, state);
  launch(stream, one_block_each(images.samples * images.channels), along, normalise_kernel, images,
         in, state.factors, out);
}

void batch_norm_test(cudaStream_t stream, const Images& images, const BatchNormRule& rule,
                     const float* in, const float* parameters, const float* statistics,
                     const BatchNormState& state, float* out) {
  launch(stream, blocks_for(images.channels), kThreads, running_factors_kernel, images.channels,
         rule.epsilon, parameters, statistics, state.factors);
  launch(stream, one_block_each(images.samples * images.channels), threads_for(images.plane),
         normalise_kernel, images, in, state.factors, out);
}

void batch_norm_gradient(cudaStream_t stream, const Images& images, const float* in,
                         const float* gradient, const float* parameters, double* scratch,
                         const BatchNormState& state, float* parameter_gradients,
                         float* in_gradient) {
  const std::int64_t parts = parts_of(images);
  const unsigned along = threads_for(images.plane);
  launch(stream, one_block_each(parts * images.channels), along, gradient_moments_kernel, images,
         parts, in, gradient, state.mean, scratch);
  launch(stream, blocks_for(images.channels), kThreads, gradient_factors_kernel, images, parts,
         scratch, parameters, state, parameter_gradients);
  if (in_gradient == nullptr) return;
  launch(stream, one_block_each(images.samples * images.channels), along, normalise_gradient_kernel,
         images, in, gradient, state.factors, in_gradient);
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
