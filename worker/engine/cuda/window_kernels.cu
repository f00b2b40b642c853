// Pooling and normalisation across channels. Gradients are gathered: each input element's thread
// visits the outputs whose windows it lies in, in their order, so that nothing is added atomically.

#include "worker/engine/cuda/cuda_kernels.h"
#include "worker/engine/cuda/launch.cuh"

namespace poseidon::cuda {
namespace {

/// Positions [begin, end) along one dimension.
struct Range {
  std::int64_t begin, end;
};

/// Of the input, inside the image, for the window of output `at`.
__device__ Range window_range(std::int64_t at, std::int64_t kernel, std::int64_t stride,
                              std::int64_t pad, std::int64_t size) {
  const std::int64_t begin = at * stride - pad;
  const std::int64_t end = begin + kernel;
  return {begin < 0 ? 0 : begin, end > size ? size : end};
}

/// Of the outputs whose windows hold input `at`.
__device__ Range outputs_of(std::int64_t at, std::int64_t kernel, std::int64_t stride,
                            std::int64_t pad, std::int64_t outputs) {
  const std::int64_t behind = at + pad - kernel;  // windows that begin at or before this are over
  const std::int64_t begin = behind < 0 ? 0 : behind / stride + 1;
  const std::int64_t end = (at + pad) / stride + 1;
  return {begin, end > outputs ? outputs : end};
}

/// Where an element of a tensor of planes is.
struct Place {
  std::int64_t plane, y, x;
};
__device__ Place place_of(std::int64_t index, std::int64_t height, std::int64_t width) {
  const std::int64_t row = index / width;
  return {row / height, row % height, index % width};
}

__global__ void max_pool_kernel(PoolWindow w, const float* in, float* out, std::int32_t* chosen) {
  const std::int64_t size = w.planes * w.out_height * w.out_width;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const Place at = place_of(i, w.out_height, w.out_width);
    const Range rows = window_range(at.y, w.kernel_h, w.stride_h, w.pad_h, w.height);
    const Range columns = window_range(at.x, w.kernel_w, w.stride_w, w.pad_w, w.width);
    const float* const image = in + at.plane * w.height * w.width;
    std::int64_t best = -1;
    float largest = 0.0f;
    for (std::int64_t y = rows.begin; y < rows.end; ++y) {
      for (std::int64_t x = columns.begin; x < columns.end; ++x) {
        const float value = image[y * w.width + x];
        if (best < 0 || value > largest || value != value) {
          best = y * w.width + x;
          largest = value;
        }
      }
    }
    out[i] = largest;
    chosen[i] = static_cast<std::int32_t>(best);
  }
}

__global__ void max_pool_gradient_kernel(PoolWindow w, const float* gradient,
                                         const std::int32_t* chosen, float* in_gradient) {
  const std::int64_t size = w.planes * w.height * w.width;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const Place at = place_of(i, w.height, w.width);
    const Range rows = outputs_of(at.y, w.kernel_h, w.stride_h, w.pad_h, w.out_height);
    const Range columns = outputs_of(at.x, w.kernel_w, w.stride_w, w.pad_w, w.out_width);
    const auto here = static_cast<std::int32_t>(at.y * w.width + at.x);
    const std::int64_t plane = at.plane * w.out_height * w.out_width;
    float total = 0.0f;
    for (std::int64_t y = rows.begin; y < rows.end; ++y) {
      for (std::int64_t x = columns.begin; x < columns.end; ++x) {
        const std::int64_t output = plane + y * w.out_width + x;
        if (chosen[output] == here) total += gradient[output];
      }
    }
    in_gradient[i] = total;
  }
}

/// How many elements of a window count along one dimension: padding where asked for, the overhang
/// behind it never.
__device__ std::int64_t extent(std::int64_t at, std::int64_t kernel, std::int64_t stride,
                               std::int64_t pad, std::int64_t size, bool count_padding) {
  if (!count_padding) {
    const Range inside = window_range(at, kernel, stride, pad, size);
    return inside.end - inside.begin;
  }
  const std::int64_t begin = at * stride, end = begin + kernel, padded = size + 2 * pad;
  return (end < padded ? end : padded) - begin;
}

__device__ double divisor(const PoolWindow& w, std::int64_t y, std::int64_t x) {
  return static_cast<double>(extent(y, w.kernel_h, w.stride_h, w.pad_h, w.height, w.count_padding) *
                             extent(x, w.kernel_w, w.stride_w, w.pad_w, w.width, w.count_padding));
}

__global__ void average_pool_kernel(PoolWindow w, const float* in, float* out) {
  const std::int64_t size = w.planes * w.out_height * w.out_width;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const Place at = place_of(i, w.out_height, w.out_width);
    const Range rows = window_range(at.y, w.kernel_h, w.stride_h, w.pad_h, w.height);
    const Range columns = window_range(at.x, w.kernel_w, w.stride_w, w.pad_w, w.width);
    const float* const image = in + at.plane * w.height * w.width;
    double total = 0.0;
    for (std::int64_t y = rows.begin; y < rows.end; ++y) {
      for (std::int64_t x = columns.begin; x < columns.end; ++x) total += image[y * w.width + x];
    }
    out[i] = static_cast<float>(total / divisor(w, at.y, at.x));
  }
}

__global__ void average_pool_gradient_kernel(PoolWindow w, const float* gradient,
                                             float* in_gradient) {
  const std::int64_t size = w.planes * w.height * w.width;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const Place at = place_of(i, w.height, w.width);
    const Range rows = outputs_of(at.y, w.kernel_h, w.stride_h, w.pad_h, w.out_height);
    const Range columns = outputs_of(at.x, w.kernel_w, w.stride_w, w.pad_w, w.out_width);
    const float* const plane = gradient + at.plane * w.out_height * w.out_width;
    double total = 0.0;
    for (std::int64_t y = rows.begin; y < rows.end; ++y) {
      for (std::int64_t x = columns.begin; x < columns.end; ++x) {
        total += plane[y * w.out_width + x] / divisor(w, y, x);
      }
    }
    in_gradient[i] = static_cast<float>(total);
  }
}

// ---- normalisation across channels ----

/// [begin, end) of the channels that count for channel c.
__device__ Range near(const LrnSizes& sizes, std::int64_t c) {
  const std::int64_t begin = c - sizes.half, end = c + sizes.half + 1;
  return {begin < 0 ? 0 : begin, end > sizes.channels ? sizes.channels : end};
}

__global__ void lrn_kernel(LrnSizes sizes, const float* in, float* scale, float* out) {
  const std::int64_t size = sizes.samples * sizes.channels * sizes.plane;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const std::int64_t c = i / sizes.plane % sizes.channels;
    const Range channels = near(sizes, c);
    float squares = 0.0f;
    for (std::int64_t j = channels.begin; j < channels.end; ++j) {
      const float value = in[i + (j - c) * sizes.plane];
      squares += value * value;
    }
    const float own = sizes.k + sizes.slope * squares;
    scale[i] = own;
    out[i] = in[i] * powf(own, -sizes.beta);
  }
}

// y_c = x_c s_c^-b, ds_c/dx_j = 2 slope x_j for j near c, which is as far as c near j.
__global__ void lrn_gradient_kernel(LrnSizes sizes, const float* in, const float* scale,
                                    const float* gradient, float* in_gradient) {
  const std::int64_t size = sizes.samples * sizes.channels * sizes.plane;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const std::int64_t c = i / sizes.plane % sizes.channels;
    const Range channels = near(sizes, c);
    float common = 0.0f;
    for (std::int64_t j = channels.begin; j < channels.end; ++j) {
      const std::int64_t other = i + (j - c) * sizes.plane;
      common += gradient[other] * in[other] * powf(scale[other], -sizes.beta - 1.0f);
    }
    in_gradient[i] = gradient[i] * powf(scale[i], -sizes.beta) -
                     2.0f * sizes.slope * sizes.beta * in[i] * common;
  }
}

}  // namespace

void max_pool(cudaStream_t stream, const PoolWindow& window, const float* in, float* out,
              std::int32_t* chosen) {
  const std::int64_t size = window.planes * window.out_height * window.out_width;
  launch(stream, blocks_for(size), kThreads, max_pool_kernel, window, in, out, chosen);
}

void max_pool_gradient(cudaStream_t stream, const PoolWindow& window, const float* gradient,
                       const std::int32_t* chosen, float* in_gradient) {
  const std::int64_t size = window.planes * window.height * window.width;
  launch(stream, blocks_for(size), kThreads, max_pool_gradient_kernel, window, gradient, chosen,
         in_gradient);
}

void average_pool(cudaStream_t stream, const PoolWindow& window, const float* in, float* out) {
  const std::int64_t size = window.planes * window.out_height * window.out_width;
  launch(stream, blocks_for(size), kThreads, average_pool_kernel, window, in, out);
}

void average_pool_gradient(cudaStream_t stream, const PoolWindow& window, const float* gradient,
                           float* in_gradient) {
  const std::int64_t size = window.planes * window.height * window.width;
  launch(stream, blocks_for(size), kThreads, average_pool_gradient_kernel, window, gradient,
         in_gradient);
}

void lrn(cudaStream_t stream, const LrnSizes& sizes, const float* in, float* scale, float* out) {
  const std::int64_t size = sizes.samples * sizes.channels * sizes.plane;
  launch(stream, blocks_for(size), kThreads, lrn_kernel, sizes, in, scale, out);
}

void lrn_gradient(cudaStream_t stream, const LrnSizes& sizes, const float* in, const float* scale,
                  const float* gradient, float* in_gradient) {
  const std::int64_t size = sizes.samples * sizes.channels * sizes.plane;
  launch(stream, blocks_for(size), kThreads, lrn_gradient_kernel, sizes, in, scale, gradient,
         in_gradient);
}

}  // namespace poseidon::cuda
