#pragma once

// The CPU device's loops over activations, in the widest instructions that this processor has: as
// common/tensor/kernels.h, one table of functions per instruction set, all giving the same bits
// (element i depends on element i alone, or sums go lane by lane in one fixed order; nothing is
// contracted). Pure. Any thread.
//
// "Rows" are groups of `lanes` floats, 8 or 16, one behind the other. In Layout::kDevice a row is
// one pixel of `lanes` channels; a plain plane is read as rows of one channel, whose lanes are
// added up at the end.
//
// Called by: the CPU device's operators. Calls: nothing.

#include <cstdint>
#include <span>

namespace poseidon {

/// Per lane: what normalises one row. out = (x - mean) * scale + shift.
struct NormaliseFactors {
  const float* mean;
  const float* scale;
  const float* shift;
};

/// Per lane. dx = of_gradient * dy + (of_input * (x - mean) + constant).
struct NormaliseGradientFactors {
  const float* mean;
  const float* of_gradient;
  const float* of_input;
  const float* constant;
};

/// The sizes of one max pooling on rows.
struct MaxWindow {
  std::int64_t height, width, out_height, out_width;
  std::int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
};

struct VectorLoops {
  const char* name;  ///< "baseline", "avx2", "avx512"

  /// out = in <= 0 ? 0 : in, so that a NaN stays one; `out` may be `in`.
  void (*relu)(const float* in, float* out, std::int64_t size);
  /// out = in <= 0 ? 0 : gradient; `out` may be `gradient`. `in` may be ReLU's output as well.
  void (*relu_gradient)(const float* in, const float* gradient, float* out, std::int64_t size);
  /// out = a + b; `out` may be `a`.
  void (*sum)(const float* a, const float* b, float* out, std::int64_t size);

  /// Adds to first[lane] the sum of x, to second[lane] that of x^2.
  void (*moments)(const float* x, std::int64_t rows, std::int64_t lanes, double* first,
                  double* second);
  /// Adds to first[lane] the sum of dy, to second[lane] that of dy (x - mean).
  void (*gradient_moments)(const float* x, const float* dy, const double* mean, std::int64_t rows,
                           std::int64_t lanes, double* first, double* second);
  void (*normalise)(const NormaliseFactors& factors, const float* x, std::int64_t rows,
                    std::int64_t lanes, float* out);
  void (*normalise_gradient)(const NormaliseGradientFactors& factors, const float* x,
                             const float* dy, std::int64_t rows, std::int64_t lanes, float* dx);

  /// One plane of rows. `chosen` gets for each output element the number of its window's element
  /// that is the largest: the first of equal ones, the last of NaNs.
  void (*max_pool)(const MaxWindow& window, const float* in, std::int64_t lanes, float* out,
                   std::int32_t* chosen);
  /// `in_gradient`, zeroed before, gets each output's gradient where `chosen` says.
  void (*max_pool_gradient)(const MaxWindow& window, const float* gradient,
                            const std::int32_t* chosen, std::int64_t lanes, float* in_gradient);
};

/// The best that this processor can run, found out once.
const VectorLoops& vector_loops();
/// All that this processor can run, the baseline first: for tests.
std::span<const VectorLoops* const> supported_vector_loops();

}  // namespace poseidon
