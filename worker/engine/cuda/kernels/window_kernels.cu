// Pooling and normalisation across channels. Gradients are gathered: each input element's thread
// visits the outputs whose windows it lies in, in their order, so that nothing is added atomically.

#include "worker/engine/cuda/kernels/channel_walk.cuh"
#include "worker/engine/cuda/kernels/cuda_kernels.h"
#include "worker/engine/cuda/kernels/element.cuh"
#include "worker/engine/cuda/kernels/launch.cuh"

namespace poseidon::cuda {
namespace {

/// Positions [begin, end) along one dimension.
struct Range {
  int begin, end;
};

/// Along one dimension: where windows are, in input and outputs.
struct Windows {
  int kernel, stride, pad, size, outputs;

  /// Of the input, inside the image, for the window of output `at`.
  __device__ Range of_output(int at) const {
    const int begin = at * stride - pad, end = begin + kernel;
    return {begin < 0 ? 0 : begin, end > size ? size : end};
  }
  /// Of the outputs whose windows hold input `at`.
  __device__ Range of_input(int at) const {
    const int behind = at + pad - kernel;  // windows that begin at or before this are over
    const int begin = behind < 0 ? 0 : behind / stride + 1;
    const int end = (at + pad) / stride + 1;
    return {begin, end > outputs ? outputs : end};
  }
  /// How many elements of a window count: padding where asked for, the overhang behind it never.
  __device__ int extent(int at, bool count_padding) const {
    if (!count_padding) {
      const Range inside = of_output(at);
      return inside.end - inside.begin;
    }
    const int begin = at * stride, end = begin + kernel, padded = size + 2 * pad;
    return (end < padded ? end : padded) - begin;
  }
};

/// An image of a tensor, with all that lies side by side.
struct Image {
  std::int64_t begin;
  int width, side_by_side;

  __device__ std::int64_t element(int y, int x, int c) const {
    return begin + (static_cast<std::int64_t>(y) * width + x) * side_by_side + c;
  }
};

/// call(y, x, element c there) for each of those rows and columns, in order.
template <typename Call>
__device__ void each_of(const Image& image, const Range& rows, const Range& columns, int c,
                        const Call& call) {
  for (int y = rows.begin; y < rows.end; ++y) {
    for (int x = columns.begin; x < columns.end; ++x) call(y, x, image.element(y, x, c));
  }
}

struct Pooling {
  Windows rows, columns;
  int side_by_side;  ///< planes
  bool count_padding;

  __device__ Image input(std::int64_t number) const {
    return image(number, rows.size, columns.size);
  }
  __device__ Image output(std::int64_t number) const {
    return image(number, rows.outputs, columns.outputs);
  }
  /// Which of the positions of output (out_y, out_x)'s window input (y, x) has.
  __device__ int position(int y, int x, int out_y, int out_x) const {
    return (y - out_y * rows.stride + rows.pad) * columns.kernel +
           (x - out_x * columns.stride + columns.pad);
  }
  /// How many elements of that window count.
  __device__ std::int64_t counting(int out_y, int out_x) const {
    return std::int64_t{rows.extent(out_y, count_padding)} * columns.extent(out_x, count_padding);
  }

 private:
  __device__ Image image(std::int64_t number, int height, int width) const {
    return {number * height * width * side_by_side, width, side_by_side};
  }
};

/// Rows of an image with all that lies side by side: each is `across` threads' of a block, which
/// take groups of channels, and then pixels, side by side.
struct Rows {
  std::int64_t count;  ///< of all images
  int width, height, across;
};

/// at(image, y) for each row returns what is then called with (x, c): with the first of kWide
/// channels from c on, at each pixel.
template <int kWide, typename At>
__device__ void walk_rows(const Rows& rows, int side_by_side, const At& at) {
  const unsigned lane = threadIdx.x % static_cast<unsigned>(rows.across);
  const std::int64_t at_a_time = blockDim.x / rows.across;
  const auto groups = static_cast<unsigned>(side_by_side / kWide);
  const unsigned items = static_cast<unsigned>(rows.width) * groups;  // < 2^31
  for (std::int64_t r = blockIdx.x * at_a_time + threadIdx.x / rows.across; r < rows.count;
       r += gridDim.x * at_a_time) {
    const std::int64_t image = quotient(r, rows.height);
    const auto of_row = at(image, static_cast<int>(r - image * rows.height));
    for (unsigned i = lane; i < items; i += static_cast<unsigned>(rows.across)) {
      const unsigned x = i / groups;
      of_row(static_cast<int>(x), static_cast<int>(i - x * groups) * kWide);
    }
  }
}

template <typename Form, typename Choice>
__global__ void max_pool_kernel(Rows rows, Pooling pool, const typename Form::Element* in,
                                typename Form::Element* out, Choice* chosen) {
  using Choices = Neighbours<Choice, Form::kWide>;
  walk_rows<Form::kWide>(rows, pool.side_by_side, [=](std::int64_t number, int y) {
    const Image from = pool.input(number), to = pool.output(number);
    const Range window_rows = pool.rows.of_output(y);
    return [=](int x, int c) {
      typename Form::Values largest;
      Choices best{};
      bool is_first = true;
      each_of(from, window_rows, pool.columns.of_output(x), c,
              [&](int in_y, int in_x, std::int64_t i) {
                const typename Form::Values values = Form::load_at(in, i);
                const auto position = static_cast<Choice>(pool.position(in_y, in_x, y, x));
                for (int k = 0; k < Form::kWide; ++k) {
                  const float value = values.at[k];
                  if (is_first || value > largest.at[k] || value != value) {
                    largest.at[k] = value;
                    best.at[k] = position;
                  }
                }
                is_first = false;
              });
      const std::int64_t o = to.element(y, x, c);
      Form::store_at(out, o, largest);
      neighbours_at<Choices>(chosen + o) = best;
    };
  });
}

template <typename Form, typename Choice>
__global__ void max_pool_gradient_kernel(Rows rows, Pooling pool,
                                         const typename Form::Element* gradient,
                                         const Choice* chosen,
                                         typename Form::Element* in_gradient) {
  using Choices = Neighbours<Choice, Form::kWide>;
  walk_rows<Form::kWide>(rows, pool.side_by_side, [=](std::int64_t number, int y) {
    const Image from = pool.output(number), to = pool.input(number);
    const Range window_rows = pool.rows.of_input(y);
    return [=](int x, int c) {
      typename Form::Values total;
      each_of(from, window_rows, pool.columns.of_input(x), c,
              [&](int out_y, int out_x, std::int64_t o) {
                const auto here = static_cast<Choice>(pool.position(y, x, out_y, out_x));
                const Choices choices = neighbours_at<Choices>(chosen + o);
                const typename Form::Values slopes = Form::load_at(gradient, o);
                for (int k = 0; k < Form::kWide; ++k) {
                  if (choices.at[k] == here) total.at[k] += slopes.at[k];
                }
              });
      Form::store_at(in_gradient, to.element(y, x, c), total);
    };
  });
}

template <typename Form>
__global__ void average_pool_kernel(Rows rows, Pooling pool, const typename Form::Element* in,
                                    typename Form::Element* out) {
  walk_rows<Form::kWide>(rows, pool.side_by_side, [=](std::int64_t number, int y) {
    const Image from = pool.input(number), to = pool.output(number);
    const Range window_rows = pool.rows.of_output(y);
    return [=](int x, int c) {
      Numbers<double, Form::kWide> total;
      each_of(from, window_rows, pool.columns.of_output(x), c, [&](int, int, std::int64_t i) {
        const typename Form::Values values = Form::load_at(in, i);
        for (int k = 0; k < Form::kWide; ++k) total.at[k] += values.at[k];
      });
      const double share = 1.0 / static_cast<double>(pool.counting(y, x));
      typename Form::Values mean;
      for (int k = 0; k < Form::kWide; ++k) mean.at[k] = static_cast<float>(total.at[k] * share);
      Form::store_at(out, to.element(y, x, c), mean);
    };
  });
}

// In float32, of so few windows as an element lies in; each gives its share, rounded once.
template <typename Form>
__global__ void average_pool_gradient_kernel(Rows rows, Pooling pool,
                                             const typename Form::Element* gradient,
                                             typename Form::Element* in_gradient) {
  walk_rows<Form::kWide>(rows, pool.side_by_side, [=](std::int64_t number, int y) {
    const Image from = pool.output(number), to = pool.input(number);
    const Range window_rows = pool.rows.of_input(y);
    return [=](int x, int c) {
      typename Form::Values total;
      each_of(from, window_rows, pool.columns.of_input(x), c,
              [&](int out_y, int out_x, std::int64_t o) {
                const float share = 1.0f / static_cast<float>(pool.counting(out_y, out_x));
                const typename Form::Values slopes = Form::load_at(gradient, o);
                for (int k = 0; k < Form::kWide; ++k) total.at[k] += slopes.at[k] * share;
              });
      Form::store_at(in_gradient, to.element(y, x, c), total);
    };
  });
}

// ---- normalisation across channels ----

/// [begin, end) of the channels that count for channel c.
struct ChannelRange {
  std::int64_t begin, end;
};
__device__ ChannelRange near(const LrnSizes& sizes, std::int64_t c) {
  const std::int64_t begin = c - sizes.half, end = c + sizes.half + 1;
  return {begin < 0 ? 0 : begin, end > sizes.channels ? sizes.channels : end};
}

/// Of the channels of all samples or pixels, one after the other, the one with that number.
__device__ std::int64_t channel_of(const LrnSizes& sizes, std::int64_t number) {
  return number - quotient(number, sizes.channels) * sizes.channels;
}

// An element to a thread: for any layout and any local_size.

template <typename Element>
__global__ void lrn_kernel(LrnSizes sizes, const Element* in, float* scale, Element* out) {
  const std::int64_t size = sizes.samples * sizes.channels * sizes.plane;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const std::int64_t c = channel_of(sizes, quotient(i, sizes.stride));
    const ChannelRange channels = near(sizes, c);
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
    const std::int64_t c = channel_of(sizes, quotient(i, sizes.stride));
    const ChannelRange channels = near(sizes, c);
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

// Several neighbouring channels to a thread, channels last, for the usual local_size of 5: each
// thread computes what its own channels add and what kHalo more on either side do, once each.

constexpr int kHalo = 2;  ///< LrnSizes::half

/// Those channels of a tensor: kWide from element i of channel c on are the thread's own. `absent`
/// stands for channels that there are not.
template <int kWide, typename Element>
__device__ Numbers<float, kWide + 2 * kHalo> with_halo(const Element* tensor, std::int64_t i,
                                                       std::int64_t c, std::int64_t channels,
                                                       float absent) {
  static_assert(kWide % kHalo == 0, "a halo is there as a whole or not at all");
  using Side = FormBase<Element, kHalo>;
  typename Side::Values before{absent, absent}, behind{absent, absent};
  if (c > 0) before = Side::load_at(tensor, i - kHalo);
  if (c + kWide < channels) behind = Side::load_at(tensor, i + kWide);
  const auto own = FormBase<Element, kWide>::load_at(tensor, i);
  Numbers<float, kWide + 2 * kHalo> all;
  for (int k = 0; k < kWide; ++k) all.at[kHalo + k] = own.at[k];
  for (int k = 0; k < kHalo; ++k) {
    all.at[k] = before.at[k];
    all.at[kHalo + kWide + k] = behind.at[k];
  }
  return all;
}

/// The sum of what counts for the thread's channel k, in the channels' order; zero is added for
/// those that there are not.
template <int kAll>
__device__ float sum_near(const Numbers<float, kAll>& all, int k) {
  float sum = 0.0f;
  for (int j = k; j <= k + 2 * kHalo; ++j) sum += all.at[j];
  return sum;
}

/// base^exponent of a positive base, to some 2^-20: powf, exact to the last digit, takes three times
/// as many instructions, and the kernels would wait for them instead of memory.
__device__ float power(float base, float exponent) { return exp2f(exponent * log2f(base)); }

template <typename Form>
__global__ void wide_lrn_kernel(LrnSizes sizes, const typename Form::Element* in, float* scale,
                                typename Form::Element* out) {
  constexpr int kWide = Form::kWide;
  const std::int64_t size = sizes.samples * sizes.channels * sizes.plane;
  for (std::int64_t i = first_item() * kWide; i < size; i += item_stride() * kWide) {
    const auto values = with_halo<kWide>(in, i, channel_of(sizes, i), sizes.channels, 0.0f);
    auto squares = values;
    for (float& square : squares.at) square *= square;
    typename Form::Values scales, results;
    for (int k = 0; k < kWide; ++k) {
      scales.at[k] = sizes.k + sizes.slope * sum_near(squares, k);
      results.at[k] = values.at[kHalo + k] * power(scales.at[k], -sizes.beta);
    }
    FormBase<float, kWide>::store_at(scale, i, scales);
    Form::store_at(out, i, results);
  }
}

template <typename Form>
__global__ void wide_lrn_gradient_kernel(LrnSizes sizes, const typename Form::Element* in,
                                         const float* scale, const typename Form::Element* gradient,
                                         typename Form::Element* in_gradient) {
  constexpr int kWide = Form::kWide, kAll = kWide + 2 * kHalo;
  const std::int64_t size = sizes.samples * sizes.channels * sizes.plane;
  for (std::int64_t i = first_item() * kWide; i < size; i += item_stride() * kWide) {
    const std::int64_t c = channel_of(sizes, i);
    const auto values = with_halo<kWide>(in, i, c, sizes.channels, 0.0f);
    const auto slopes = with_halo<kWide>(gradient, i, c, sizes.channels, 0.0f);
    const auto scales = with_halo<kWide>(scale, i, c, sizes.channels, 1.0f);
    Numbers<float, kAll> terms;
    for (int k = 0; k < kAll; ++k) {
      terms.at[k] = slopes.at[k] * values.at[k] * power(scales.at[k], -sizes.beta - 1.0f);
    }
    typename Form::Values results;
    for (int k = 0; k < kWide; ++k) {
      const int own = kHalo + k;
      results.at[k] = slopes.at[own] * power(scales.at[own], -sizes.beta) -
                      2.0f * sizes.slope * sizes.beta * values.at[own] * sum_near(terms, k);
    }
    Form::store_at(in_gradient, i, results);
  }
}

std::int64_t elements_of(const LrnSizes& s) { return s.samples * s.channels * s.plane; }

// ---- launches ----

Pooling pooling_of(const PoolWindow& w) {
  const auto narrow = [](std::int64_t size) { return static_cast<int>(size); };  // bounded by net.h
  return {.rows = {narrow(w.kernel_h), narrow(w.stride_h), narrow(w.pad_h), narrow(w.height),
                   narrow(w.out_height)},
          .columns = {narrow(w.kernel_w), narrow(w.stride_w), narrow(w.pad_w), narrow(w.width),
                      narrow(w.out_width)},
          .side_by_side = narrow(w.side_by_side),
          .count_padding = w.count_padding};
}

/// A kernel that walks rows of `height` x `width` images, kWide channels to a thread.
template <int kWide, typename... Parameters, typename... Arguments>
void launch_rows(cudaStream_t stream, const PoolWindow& w, std::int64_t height, std::int64_t width,
                 void (*kernel)(Parameters...), Arguments... arguments) {
  int across = 1;  // a power of two, which divides the block
  while (across < kThreads && across < width * (w.side_by_side / kWide)) across *= 2;
  const Rows rows = {.count = w.planes / w.side_by_side * height,
                     .width = static_cast<int>(width),
                     .height = static_cast<int>(height),
                     .across = across};
  const std::int64_t at_a_time = kThreads / across;
  launch(stream, one_block_each((rows.count + at_a_time - 1) / at_a_time), kThreads, kernel, rows,
         pooling_of(w), arguments...);
}

/// call(Form()) with as many channels to a thread as lie side by side, 16 bytes of them at most.
template <typename Call>
void of_wide_form(Layout layout, std::int64_t side_by_side, const Call& call) {
  of_layout(layout, [&](auto element) {
    using Element = decltype(element);
    constexpr int kMost = 16 / sizeof(Element);
    if (side_by_side % kMost == 0) {
      call(FormBase<Element, kMost>());
    } else if (side_by_side % 2 == 0) {
      call(FormBase<Element, 2>());
    } else {
      call(FormBase<Element, 1>());
    }
  });
}
template <typename Call>
void of_window_form(const PoolWindow& w, const Call& call) {
  of_wide_form(w.layout, w.side_by_side, call);
}

/// wide(Form()) where threads may take several channels, which the form says; else one(Element()).
template <typename Wide, typename One>
void of_lrn_form(const LrnSizes& s, const Wide& wide, const One& one) {
  if (has_channels_last(s.layout) && s.half == kHalo && s.channels % 2 == 0) {
    of_wide_form(s.layout, s.channels, [&](auto form) {
      if constexpr (decltype(form)::kWide > 1) wide(form);
    });
  } else {
    of_layout(s.layout, one);
  }
}

/// call(Choice()) for the type that holds each of a window's positions.
template <typename Call>
void of_choice(const PoolWindow& w, const Call& call) {
  if (choice_bytes(w) == 1) {
    call(std::uint8_t());
  } else {
    call(std::int32_t());
  }
}

}  // namespace

std::int64_t choice_bytes(const PoolWindow& window) {
  return window.kernel_h * window.kernel_w <= 256 ? 1 : 4;
}

void max_pool(cudaStream_t stream, const PoolWindow& window, const float* in, float* out,
              void* chosen) {
  of_window_form(window, [&](auto form) {
    of_choice(window, [&](auto choice) {
      using Form = decltype(form);
      using Element = typename Form::Element;
      using Choice = decltype(choice);
      launch_rows<Form::kWide>(stream, window, window.out_height, window.out_width,
                               max_pool_kernel<Form, Choice>, elements<Element>(in),
                               elements<Element>(out), static_cast<Choice*>(chosen));
    });
  });
}

void max_pool_gradient(cudaStream_t stream, const PoolWindow& window, const float* gradient,
                       const void* chosen, float* in_gradient) {
  of_window_form(window, [&](auto form) {
    of_choice(window, [&](auto choice) {
      using Form = decltype(form);
      using Element = typename Form::Element;
      using Choice = decltype(choice);
      launch_rows<Form::kWide>(stream, window, window.height, window.width,
                               max_pool_gradient_kernel<Form, Choice>,
                               elements<Element>(gradient), static_cast<const Choice*>(chosen),
                               elements<Element>(in_gradient));
    });
  });
}

void average_pool(cudaStream_t stream, const PoolWindow& window, const float* in, float* out) {
  of_window_form(window, [&](auto form) {
    using Form = decltype(form);
    using Element = typename Form::Element;
    launch_rows<Form::kWide>(stream, window, window.out_height, window.out_width,
                             average_pool_kernel<Form>, elements<Element>(in),
                             elements<Element>(out));
  });
}

void average_pool_gradient(cudaStream_t stream, const PoolWindow& window, const float* gradient,
                           float* in_gradient) {
  of_window_form(window, [&](auto form) {
    using Form = decltype(form);
    using Element = typename Form::Element;
    launch_rows<Form::kWide>(stream, window, window.height, window.width,
                             average_pool_gradient_kernel<Form>, elements<Element>(gradient),
                             elements<Element>(in_gradient));
  });
}

void lrn(cudaStream_t stream, const LrnSizes& sizes, const float* in, float* scale, float* out) {
  const auto queue = [&](auto element, int wide, auto kernel) {
    using Element = decltype(element);
    launch(stream, blocks_for(elements_of(sizes) / wide), kThreads, kernel, sizes,
           elements<Element>(in), scale, elements<Element>(out));
  };
  of_lrn_form(
      sizes,
      [&](auto form) {
        using Form = decltype(form);
        queue(typename Form::Element(), Form::kWide, wide_lrn_kernel<Form>);
      },
      [&](auto element) { queue(element, 1, lrn_kernel<decltype(element)>); });
}

void lrn_gradient(cudaStream_t stream, const LrnSizes& sizes, const float* in, const float* scale,
                  const float* gradient, float* in_gradient) {
  const auto queue = [&](auto element, int wide, auto kernel) {
    using Element = decltype(element);
    launch(stream, blocks_for(elements_of(sizes) / wide), kThreads, kernel, sizes,
           elements<Element>(in), scale, elements<Element>(gradient),
           elements<Element>(in_gradient));
  };
  of_lrn_form(
      sizes,
      [&](auto form) {
        using Form = decltype(form);
        queue(typename Form::Element(), Form::kWide, wide_lrn_gradient_kernel<Form>);
      },
      [&](auto element) { queue(element, 1, lrn_gradient_kernel<decltype(element)>); });
}

}  // namespace poseidon::cuda
