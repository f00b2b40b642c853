#pragma once

// The loops of vector_loops.h, written once and compiled once for each instruction set (the files
// that include this; no others may). The rules of common/tensor/kernels_body.h apply: everything is
// in an unnamed namespace and calls no inline function of another header.

#include <cstdint>

#include "worker/engine/cpu/vector_loops.h"

// Elements do not depend on each other, even when an array is both read and written.
#if defined(__clang__)
#define POSEIDON_INDEPENDENT_ELEMENTS _Pragma("clang loop vectorize(assume_safety)")
#else
#define POSEIDON_INDEPENDENT_ELEMENTS _Pragma("GCC ivdep")
#endif

namespace poseidon {
namespace {

template <int kLanes>
void moments_of(const float* x, std::int64_t rows, double* first, double* second) {
  double a[kLanes], b[kLanes];
  for (int l = 0; l < kLanes; ++l) a[l] = first[l];
  for (int l = 0; l < kLanes; ++l) b[l] = second[l];
  for (std::int64_t row = 0; row < rows; ++row, x += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const double value = x[l];
      a[l] += value;
      b[l] += value * value;
    }
  }
  for (int l = 0; l < kLanes; ++l) first[l] = a[l];
  for (int l = 0; l < kLanes; ++l) second[l] = b[l];
}

template <int kLanes>
void gradient_moments_of(const float* x, const float* dy, const double* mean, std::int64_t rows,
                         double* first, double* second) {
  double a[kLanes], b[kLanes], m[kLanes];
  for (int l = 0; l < kLanes; ++l) a[l] = first[l];
  for (int l = 0; l < kLanes; ++l) b[l] = second[l];
  for (int l = 0; l < kLanes; ++l) m[l] = mean[l];
  for (std::int64_t row = 0; row < rows; ++row, x += kLanes, dy += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const double gradient = dy[l];
      a[l] += gradient;
      b[l] += gradient * (x[l] - m[l]);
    }
  }
  for (int l = 0; l < kLanes; ++l) first[l] = a[l];
  for (int l = 0; l < kLanes; ++l) second[l] = b[l];
}

template <int kLanes>
void normalise_rows(const NormaliseFactors& factors, const float* x, std::int64_t rows,
                    float* out) {
  float mean[kLanes], scale[kLanes], shift[kLanes];
  for (int l = 0; l < kLanes; ++l) mean[l] = factors.mean[l];
  for (int l = 0; l < kLanes; ++l) scale[l] = factors.scale[l];
  for (int l = 0; l < kLanes; ++l) shift[l] = factors.shift[l];
  for (std::int64_t row = 0; row < rows; ++row, x += kLanes, out += kLanes) {
    POSEIDON_INDEPENDENT_ELEMENTS
    for (int l = 0; l < kLanes; ++l) out[l] = (x[l] - mean[l]) * scale[l] + shift[l];
  }
}

template <int kLanes>
void normalise_gradient_rows(const NormaliseGradientFactors& factors, const float* x,
                             const float* dy, std::int64_t rows, float* dx) {
  float mean[kLanes], of_gradient[kLanes], of_input[kLanes], constant[kLanes];
  for (int l = 0; l < kLanes; ++l) mean[l] = factors.mean[l];
  for (int l = 0; l < kLanes; ++l) of_gradient[l] = factors.of_gradient[l];
  for (int l = 0; l < kLanes; ++l) of_input[l] = factors.of_input[l];
  for (int l = 0; l < kLanes; ++l) constant[l] = factors.constant[l];
  for (std::int64_t row = 0; row < rows; ++row, x += kLanes, dy += kLanes, dx += kLanes) {
    POSEIDON_INDEPENDENT_ELEMENTS
    for (int l = 0; l < kLanes; ++l) {
      dx[l] = of_gradient[l] * dy[l] + (of_input[l] * (x[l] - mean[l]) + constant[l]);
    }
  }
}

// Rows as vectors of the compiler's own (the widest that it can compile for the instruction set):
// left to itself it does not see that these loops can have them.
template <int kLanes>
struct Row {
  using Floats [[gnu::vector_size(kLanes * sizeof(float))]] = float;
  using Integers [[gnu::vector_size(kLanes * sizeof(float))]] = std::int32_t;
};

// The elements of a window that lie inside the image: [begin, end) in one dimension.
struct Inside {
  Inside(std::int64_t first, std::int64_t kernel, std::int64_t size)
      : begin(first < 0 ? -first : 0), end(first + kernel > size ? size - first : kernel) {}
  std::int64_t begin, end;
};

template <int kLanes>
void max_pool_rows(const MaxWindow& w, const float* in, float* out, std::int32_t* chosen) {
  using Floats = typename Row<kLanes>::Floats;
  using Integers = typename Row<kLanes>::Integers;
  for (std::int64_t out_y = 0; out_y < w.out_height; ++out_y) {
    const std::int64_t top = out_y * w.stride_h - w.pad_h;
    const Inside ys(top, w.kernel_h, w.height);
    for (std::int64_t out_x = 0; out_x < w.out_width; ++out_x) {
      const std::int64_t left = out_x * w.stride_w - w.pad_w;
      const Inside xs(left, w.kernel_w, w.width);
      Floats best = Floats{} - __builtin_inff();
      Integers number = Integers{} - 1;
      for (std::int64_t y = ys.begin; y < ys.end; ++y) {
        const float* x = in + ((top + y) * w.width + left + xs.begin) * kLanes;
        auto element = static_cast<std::int32_t>(y * w.kernel_w + xs.begin);
        for (std::int64_t i = xs.begin; i < xs.end; ++i, ++element, x += kLanes) {
          Floats value;
          __builtin_memcpy(&value, x, sizeof(value));
          // The last clause chooses an element even where all of them are minus infinity.
          const Integers is_nan = value != value;  // NOLINT(misc-redundant-expression)
          const Integers wins = (value > best) | is_nan | (number < 0);
          best = reinterpret_cast<Floats>((reinterpret_cast<Integers>(value) & wins) |
                                          (reinterpret_cast<Integers>(best) & ~wins));
          number = ((Integers{} + element) & wins) | (number & ~wins);
        }
      }
      const std::int64_t at = (out_y * w.out_width + out_x) * kLanes;
      __builtin_memcpy(out + at, &best, sizeof(best));
      __builtin_memcpy(chosen + at, &number, sizeof(number));
    }
  }
}

template <int kLanes>
void max_pool_gradient_rows(const MaxWindow& w, const float* gradient, const std::int32_t* chosen,
                            float* in_gradient) {
  using Floats = typename Row<kLanes>::Floats;
  using Integers = typename Row<kLanes>::Integers;
  for (std::int64_t out_y = 0; out_y < w.out_height; ++out_y) {
    const std::int64_t top = out_y * w.stride_h - w.pad_h;
    const Inside ys(top, w.kernel_h, w.height);
    for (std::int64_t out_x = 0; out_x < w.out_width; ++out_x) {
      const std::int64_t left = out_x * w.stride_w - w.pad_w;
      const Inside xs(left, w.kernel_w, w.width);
      const std::int64_t at = (out_y * w.out_width + out_x) * kLanes;
      Integers g, number;
      __builtin_memcpy(&g, gradient + at, sizeof(g));
      __builtin_memcpy(&number, chosen + at, sizeof(number));
      for (std::int64_t y = ys.begin; y < ys.end; ++y) {
        float* dx = in_gradient + ((top + y) * w.width + left + xs.begin) * kLanes;
        auto element = static_cast<std::int32_t>(y * w.kernel_w + xs.begin);
        for (std::int64_t i = xs.begin; i < xs.end; ++i, ++element, dx += kLanes) {
          Floats sum;
          __builtin_memcpy(&sum, dx, sizeof(sum));
          sum += reinterpret_cast<Floats>(g & (number == element));
          __builtin_memcpy(dx, &sum, sizeof(sum));
        }
      }
    }
  }
}

// ---- the table ----

// Of a class, so that nothing is a function of a header that others could include.
struct Loops {
  static void relu(const float* in, float* out, std::int64_t size) {
    POSEIDON_INDEPENDENT_ELEMENTS
    for (std::int64_t i = 0; i < size; ++i) out[i] = in[i] <= 0.0f ? 0.0f : in[i];
  }

  static void relu_gradient(const float* in, const float* gradient, float* out, std::int64_t size) {
    POSEIDON_INDEPENDENT_ELEMENTS
    for (std::int64_t i = 0; i < size; ++i) {
      const float g = gradient[i];
      out[i] = in[i] <= 0.0f ? 0.0f : g;
    }
  }

  static void sum(const float* a, const float* b, float* out, std::int64_t size) {
    POSEIDON_INDEPENDENT_ELEMENTS
    for (std::int64_t i = 0; i < size; ++i) out[i] = a[i] + b[i];
  }

  static void moments(const float* x, std::int64_t rows, std::int64_t lanes, double* first,
                      double* second) {
    lanes == 16 ? moments_of<16>(x, rows, first, second) : moments_of<8>(x, rows, first, second);
  }

  static void gradient_moments(const float* x, const float* dy, const double* mean,
                               std::int64_t rows, std::int64_t lanes, double* first,
                               double* second) {
    lanes == 16 ? gradient_moments_of<16>(x, dy, mean, rows, first, second)
                : gradient_moments_of<8>(x, dy, mean, rows, first, second);
  }

  static void normalise(const NormaliseFactors& factors, const float* x, std::int64_t rows,
                        std::int64_t lanes, float* out) {
    lanes == 16 ? normalise_rows<16>(factors, x, rows, out)
                : normalise_rows<8>(factors, x, rows, out);
  }

  static void normalise_gradient(const NormaliseGradientFactors& factors, const float* x,
                                 const float* dy, std::int64_t rows, std::int64_t lanes,
                                 float* dx) {
    lanes == 16 ? normalise_gradient_rows<16>(factors, x, dy, rows, dx)
                : normalise_gradient_rows<8>(factors, x, dy, rows, dx);
  }

  static void max_pool(const MaxWindow& window, const float* in, std::int64_t lanes, float* out,
                       std::int32_t* chosen) {
    lanes == 16 ? max_pool_rows<16>(window, in, out, chosen)
                : max_pool_rows<8>(window, in, out, chosen);
  }

  static void max_pool_gradient(const MaxWindow& window, const float* gradient,
                                const std::int32_t* chosen, std::int64_t lanes,
                                float* in_gradient) {
    lanes == 16 ? max_pool_gradient_rows<16>(window, gradient, chosen, in_gradient)
                : max_pool_gradient_rows<8>(window, gradient, chosen, in_gradient);
  }
};

constexpr VectorLoops make_vector_loops(const char* name) {
  return {.name = name,
          .relu = Loops::relu,
          .relu_gradient = Loops::relu_gradient,
          .sum = Loops::sum,
          .moments = Loops::moments,
          .gradient_moments = Loops::gradient_moments,
          .normalise = Loops::normalise,
          .normalise_gradient = Loops::normalise_gradient,
          .max_pool = Loops::max_pool,
          .max_pool_gradient = Loops::max_pool_gradient};
}

}  // namespace
}  // namespace poseidon
