// Pooling and normalisation across channels. Gradients are gathered: each input element's thread
// visits the outputs whose windows it lies in, in their order, so that nothing is added atomically.

#include "worker/engine/cuda/cuda_kernels.h"
#include "worker/engine/cuda/element.cuh"
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
  const std::int64_t begin = behind < 0 ? 0 : quotient(behind, stride) + 1;
  const std::int64_t end = quotient(at + pad, stride) + 1;
  return {begin, end > outputs ? outputs : end};
}

/// An element of a tensor: of which group of planes that lie side by side, of which of these, where.
struct Place {
  std::int64_t group, plane, y, x;
};
__device__ Place place_of(std::int64_t index, std::int64_t side_by_side, std::int64_t height,
                          std::int64_t width) {
  const std::int64_t pixel = quotient(index, side_by_side), row = quotient(pixel, width);
  const std::int64_t group = quotient(row, height);
  return {group, index - pixel * side_by_side, row - group * height, pixel - row * width};
}
/// The first element of that plane in a tensor whose planes have so many.
__device__ std::int64_t plane_begin(const Place& at, std::int64_t side_by_side,
                                    std::int64_t elements) {
  return at.group * side_by_side * elements + at.plane;
}

template <typename Element>
__global__ void max_pool_kernel(PoolWindow w, const Element* in, Element* out,
                                std::int32_t* chosen) {
  const std::int64_t size = w.planes * w.out_height * w.out_width;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const Place at = place_of(i, w.side_by_side, w.out_height, w.out_width);
    const Range rows = window_range(at.y, w.kernel_h, w.stride_h, w.pad_h, w.height);
    const Range columns = window_range(at.x, w.kernel_w, w.stride_w, w.pad_w, w.width);
    const Element* const image = in + plane_begin(at, w.side_by_side, w.height * w.width);
    std::int64_t best = -1;
    float largest = 0.0f;
    for (std::int64_t y = rows.begin; y < rows.end; ++y) {
      for (std::int64_t x = columns.begin; x < columns.end; ++x) {
        const float value = load(image + (y * w.width + x) * w.side_by_side);
        if (best < 0 || value > largest || value != value) {
          best = y * w.width + x;
          largest = value;
        }
      }
    }
    store(largest, out + i);
    chosen[i] = static_cast<std::int32_t>(best);
  }
}

template <typename Element>
__global__ void max_pool_gradient_kernel(PoolWindow w, const Element* gradient,
                                         const std::int32_t* chosen, Element* in_gradient) {
  const std::int64_t size = w.planes * w.height * w.width;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const Place at = place_of(i, w.side_by_side, w.height, w.width);
    const Range rows = outputs_of(at.y, w.kernel_h, w.stride_h, w.pad_h, w.out_height);
    const Range columns = outputs_of(at.x, w.kernel_w, w.stride_w, w.pad_w, w.out_width);
    const auto here = static_cast<std::int32_t>(at.y * w.width + at.x);
    const std::int64_t begin = plane_begin(at, w.side_by_side, w.out_height * w.out_width);
    float total = 0.0f;
    for (std::int64_t y = rows.begin; y < rows.end; ++y) {
      for (std::int64_t x = columns.begin; x < columns.end; ++x) {
        const std::int64_t output = begin + (y * w.out_width + x) * w.side_by_side;
        if (chosen[output] == here) total += load(gradient + output);
      }
    }
    store(total, in_gradient + i);
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

template <typename Element>
__global__ void average_pool_kernel(PoolWindow w, const Element* in, Element* out) {
  const std::int64_t size = w.planes * w.out_height * w.out_width;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const Place at = place_of(i, w.side_by_side, w.out_height, w.out_width);
    const Range rows = window_range(at.y, w.kernel_h, w.stride_h, w.pad_h, w.height);
    const Range columns = window_range(at.x, w.kernel_w, w.stride_w, w.pad_w, w.width);
    const Element* const image = in + plane_begin(at, w.side_by_side, w.height * w.width);
    double total = 0.0;
    for (std::int64_t y = rows.begin; y < rows.end; ++y) {
      for (std::int64_t x = columns.begin; x < columns.end; ++x) {
        total += load(image + (y * w.width + x) * w.side_by_side);
      }
    }
    store(static_cast<float>(total / divisor(w, at.y, at.x)), out + i);
  }
}

template <typename Element>
__global__ void average_pool_gradient_kernel(PoolWindow w, const Element* gradient,
                                             Element* in_gradient) {
  const std::int64_t size = w.planes * w.height * w.width;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const Place at = place_of(i, w.side_by_side, w.height, w.width);
    const Range rows = outputs_of(at.y, w.kernel_h, w.stride_h, w.pad_h, w.out_height);
    const Range columns = outputs_of(at.x, w.kernel_w, w.stride_w, w.pad_w, w.out_width);
    const Element* const plane =
        gradient + plane_begin(at, w.side_by_side, w.out_height * w.out_width);
    double total = 0.0;
    for (std::int64_t y = rows.begin; y < rows.end; ++y) {
      for (std::int64_t x = columns.begin; x < columns.end; ++x) {
        total += load(plane + (y * w.out_width + x) * w.side_by_side) / divisor(w, y, x);
      }
    }
    store(static_cast<float>(total), in_gradient + i);
  }
}

// ---- normalisation across channels ----

/// [begin, end) of the channels that count for channel c.
__device__ Range near(const LrnSizes& sizes, std::int64_t c) {
  const std::int64_t begin = c - sizes.half, end = c + sizes.half + 1;
  return {begin < 0 ? 0 : begin, end > sizes.channels ? sizes.channels : end};
}

template <typename Element>
__global__ void lrn_kernel(LrnSizes sizes, const Element* in, float* scale, Element* out) {
  const std::int64_t size = sizes.samples * sizes.channels * sizes.plane;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const std::int64_t c = i / sizes.stride % sizes.channels;
    const Range channels = near(sizes, c);
    float squares = 0.0f;
    for (std::int64_t j = channels.begin; j < channels.end; ++j) {
      const float value = load(in + i + (j - c) * sizes.stride);
      squares += value * value;
    }
    const float own = sizes.k + sizes.slope * squares;
    scale[i] = own;
    store(load(in + i) * powf(own, -sizes.beta), out + i);
  }
}

// y_c = x_c s_c^-b, ds_c/dx_j = 2 slope x_j for j near c, which is as far as c near j.
template <typename Element>
__global__ void lrn_gradient_kernel(LrnSizes sizes, const Element* in, const float* scale,
                                    const Element* gradient, Element* in_gradient) {
  const std::int64_t size = sizes.samples * sizes.channels * sizes.plane;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const std::int64_t c = i / sizes.stride % sizes.channels;
    const Range channels = near(sizes, c);
    float common = 0.0f;
    for (std::int64_t j = channels.begin; j < channels.end; ++j) {
      const std::int64_t other = i + (j - c) * sizes.stride;
      common +=
          load(gradient + other) * load(in + other) * powf(scale[other], -sizes.beta - 1.0f);
    }
    store(load(gradient + i) * powf(scale[i], -sizes.beta) -
              2.0f * sizes.slope * sizes.beta * load(in + i) * common,
          in_gradient + i);
  }
}

std::int64_t input_elements(const PoolWindow& w) { return w.planes * w.height * w.width; }
std::int64_t output_elements(const PoolWindow& w) { return w.planes * w.out_height * w.out_width; }
std::int64_t elements_of(const LrnSizes& s) { return s.samples * s.channels * s.plane; }

}  // namespace

void max_pool(cudaStream_t stream, const PoolWindow& window, const float* in, float* out,
              std::int32_t* chosen) {
  of_layout(window.layout, [&](auto element) {
    using Element = decltype(element);
    launch(stream, blocks_for(output_elements(window)), kThreads, max_pool_kernel<Element>, window,
           elements<Element>(in), elements<Element>(out), chosen);
  });
}

void max_pool_gradient(cudaStream_t stream, const PoolWindow& window, const float* gradient,
                       const std::int32_t* chosen, float* in_gradient) {
  of_layout(window.layout, [&](auto element) {
    using Element = decltype(element);
    launch(stream, blocks_for(input_elements(window)), kThreads, max_pool_gradient_kernel<Element>,
           window, elements<Element>(gradient), chosen, elements<Element>(in_gradient));
  });
}

void average_pool(cudaStream_t stream, const PoolWindow& window, const float* in, float* out) {
  of_layout(window.layout, [&](auto element) {
    using Element = decltype(element);
    launch(stream, blocks_for(output_elements(window)), kThreads, average_pool_kernel<Element>, window,
           elements<Element>(in), elements<Element>(out));
  });
}

void average_pool_gradient(cudaStream_t stream, const PoolWindow& window, const float* gradient,
                           float* in_gradient) {
  of_layout(window.layout, [&](auto element) {
    using Element = decltype(element);
    launch(stream, blocks_for(input_elements(window)), kThreads, average_pool_gradient_kernel<Element>,
           window, elements<Element>(gradient), elements<Element>(in_gradient));
  });
}

void lrn(cudaStream_t stream, const LrnSizes& sizes, const float* in, float* scale, float* out) {
  of_layout(sizes.layout, [&](auto element) {
    using Element = decltype(element);
    launch(stream, blocks_for(elements_of(sizes)), kThreads, lrn_kernel<Element>, sizes,
           elements<Element>(in), scale, elements<Element>(out));
  });
}

void lrn_gradient(cudaStream_t stream, const LrnSizes& sizes, const float* in, const float* scale,
                  const float* gradient, float* in_gradient) {
  of_layout(sizes.layout, [&](auto element) {
    using Element = decltype(element);
    launch(stream, blocks_for(elements_of(sizes)), kThreads, lrn_gradient_kernel<Element>, sizes,
           elements<Element>(in), scale, elements<Element>(gradient),
           elements<Element>(in_gradient));
  });
}

}  // namespace poseidon::cuda
