#pragma once

// The loops of vector_loops.h, written once and compiled once for each instruction set (the files
// that include this; nobody else may). What holds for common/kernels_body.h holds here: everything
// is in an unnamed namespace and calls no inline function of another header.

#include <cstdint>

#include "worker/engine/cpu/vector_loops.h"

// Elements do not depend on each other even where an array is read and written.
#if defined(__clang__)
#define POSEIDON_INDEPENDENT_ELEMENTS _Pragma("clang loop vectorize(assume_safety)")
#else
#define POSEIDON_INDEPENDENT_ELEMENTS _Pragma("GCC ivdep")
#endif

namespace poseidon {
namespace {

void relu(const float* in, float* out, std::int64_t size) {
  POSEIDON_INDEPENDENT_ELEMENTS
  for (std::int64_t i = 0; i < size; ++i) out[i] = in[i] <= 0.0f ? 0.0f : in[i];
}

void relu_gradient(const float* in, const float* gradient, float* out, std::int64_t size) {
  POSEIDON_INDEPENDENT_ELEMENTS
  for (std::int64_t i = 0; i < size; ++i) {
    const float g = gradient[i];
    out[i] = in[i] <= 0.0f ? 0.0f : g;
  }
}

void sum(const float* a, const float* b, float* out, std::int64_t size) {
  POSEIDON_INDEPENDENT_ELEMENTS
  for (std::int64_t i = 0; i < size; ++i) out[i] = a[i] + b[i];
}

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

// body(number of the window's element, its offset in rows) for those inside the image, in row
// order.
template <typename Body>
void for_window(const MaxWindow& w, std::int64_t out_y, std::int64_t out_x, const Body& body) {
  const std::int64_t top = out_y * w.stride_h - w.pad_h;
  const std::int64_t left = out_x * w.stride_w - w.pad_w;
  for (std::int64_t y = 0; y < w.kernel_h; ++y) {
    if (top + y < 0 || top + y >= w.height) continue;
    for (std::int64_t x = 0; x < w.kernel_w; ++x) {
      if (left + x < 0 || left + x >= w.width) continue;
      body(static_cast<std::int32_t>(y * w.kernel_w + x), (top + y) * w.width + left + x);
    }
  }
}

template <int kLanes>
void max_pool_rows(const MaxWindow& w, const float* in, float* out, std::int32_t* chosen) {
  for (std::int64_t out_y = 0; out_y < w.out_height; ++out_y) {
    for (std::int64_t out_x = 0; out_x < w.out_width; ++out_x) {
      float best[kLanes];
      std::int32_t number[kLanes];
      for (int l = 0; l < kLanes; ++l) best[l] = -__builtin_inff();
      for (int l = 0; l < kLanes; ++l) number[l] = -1;
      for_window(w, out_y, out_x, [&](std::int32_t element, std::int64_t row) {
        const float* const x = in + row * kLanes;
        for (int l = 0; l < kLanes; ++l) {
          const float value = x[l];
          // The last clause chooses an element even where all of them are minus infinity.
          const bool wins =
              static_cast<bool>(static_cast<int>(value > best[l]) |
                                static_cast<int>(value != value) | static_cast<int>(number[l] < 0));
          best[l] = wins ? value : best[l];
          number[l] = wins ? element : number[l];
        }
      });
      const std::int64_t at = (out_y * w.out_width + out_x) * kLanes;
      for (int l = 0; l < kLanes; ++l) out[at + l] = best[l];
      for (int l = 0; l < kLanes; ++l) chosen[at + l] = number[l];
    }
  }
}

template <int kLanes>
void max_pool_gradient_rows(const MaxWindow& w, const float* gradient, const std::int32_t* chosen,
                            float* in_gradient) {
  for (std::int64_t out_y = 0; out_y < w.out_height; ++out_y) {
    for (std::int64_t out_x = 0; out_x < w.out_width; ++out_x) {
      const std::int64_t at = (out_y * w.out_width + out_x) * kLanes;
      float g[kLanes];
      std::int32_t number[kLanes];
      for (int l = 0; l < kLanes; ++l) g[l] = gradient[at + l];
      for (int l = 0; l < kLanes; ++l) number[l] = chosen[at + l];
      for_window(w, out_y, out_x, [&](std::int32_t element, std::int64_t row) {
        float* const dx = in_gradient + row * kLanes;
        for (int l = 0; l < kLanes; ++l) dx[l] += number[l] == element ? g[l] : 0.0f;
      });
    }
  }
}

// ---- the table ----

void moments(const float* x, std::int64_t rows, std::int64_t lanes, double* first, double* second) {
  lanes == 16 ? moments_of<16>(x, rows, first, second) : moments_of<8>(x, rows, first, second);
}

void gradient_moments(const float* x, const float* dy, const double* mean, std::int64_t rows,
                      std::int64_t lanes, double* first, double* second) {
  lanes == 16 ? gradient_moments_of<16>(x, dy, mean, rows, first, second)
              : gradient_moments_of<8>(x, dy, mean, rows, first, second);
}

void normalise(const NormaliseFactors& factors, const float* x, std::int64_t rows,
               std::int64_t lanes, float* out) {
  lanes == 16 ? normalise_rows<16>(factors, x, rows, out)
              : normalise_rows<8>(factors, x, rows, out);
}

void normalise_gradient(const NormaliseGradientFactors& factors, const float* x, const float* dy,
                        std::int64_t rows, std::int64_t lanes, float* dx) {
  lanes == 16 ? normalise_gradient_rows<16>(factors, x, dy, rows, dx)
              : normalise_gradient_rows<8>(factors, x, dy, rows, dx);
}

void max_pool(const MaxWindow& window, const float* in, std::int64_t lanes, float* out,
              std::int32_t* chosen) {
  lanes == 16 ? max_pool_rows<16>(window, in, out, chosen)
              : max_pool_rows<8>(window, in, out, chosen);
}

void max_pool_gradient(const MaxWindow& window, const float* gradient, const std::int32_t* chosen,
                       std::int64_t lanes, float* in_gradient) {
  lanes == 16 ? max_pool_gradient_rows<16>(window, gradient, chosen, in_gradient)
              : max_pool_gradient_rows<8>(window, gradient, chosen, in_gradient);
}

constexpr VectorLoops make_vector_loops(const char* name) {
  return {.name = name,
          .relu = relu,
          .relu_gradient = relu_gradient,
          .sum = sum,
          .moments = moments,
          .gradient_moments = gradient_moments,
          .normalise = normalise,
          .normalise_gradient = normalise_gradient,
          .max_pool = max_pool,
          .max_pool_gradient = max_pool_gradient};
}

}  // namespace
}  // namespace poseidon
