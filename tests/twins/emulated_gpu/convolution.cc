#include "tests/twins/emulated_gpu/convolution.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/twins/emulated_gpu/rounding.h"

namespace poseidon::emulated {
namespace {

int extent(int in, int pad, int kernel, int stride) { return (in + 2 * pad - kernel) / stride + 1; }

/// Of a row's first element.
std::size_t row_index(int n, int channels, int c, int height, int row, int width) {
  return ((static_cast<std::size_t>(n) * channels + c) * height + row) * width;
}

/// call(first index in x, in w, first index in y, how many) for all products that are summed, a row
/// of outputs at a time; channels first.
template <typename Call>
void for_each_row(const Convolution& s, const Call& call) {
  const int outputs = s.w.k / s.groups();
  for (int n = 0; n < s.n; ++n)
    for (int k = 0; k < s.w.k; ++k)
      for (int c = 0; c < s.w.c; ++c)
        for (int i = 0; i < s.w.h; ++i)
          for (int j = 0; j < s.w.w; ++j) {
            // Outputs whose input is within the row: 0 <= ox * stride - pad + j < x.w.
            const int low = std::max(0, s.pad_w - j);
            const int first = (low + s.stride_w - 1) / s.stride_w;
            const int last = std::min(s.y.w - 1, (s.x.w - 1 + s.pad_w - j) / s.stride_w);
            if (s.x.w - 1 + s.pad_w - j < 0 || first > last) continue;
            for (int oy = 0; oy < s.y.h; ++oy) {
              const int iy = oy * s.stride_h - s.pad_h + i;
              if (iy < 0 || iy >= s.x.h) continue;
              const std::size_t in_row =
                  row_index(n, s.x.c, k / outputs * s.w.c + c, s.x.h, iy, s.x.w);
              const int ix = first * s.stride_w - s.pad_w + j;
              const int count = last - first + 1;
              call(in_row + static_cast<std::size_t>(ix),
                   row_index(k, s.w.c, c, s.w.h, i, s.w.w) + static_cast<std::size_t>(j),
                   row_index(n, s.y.c, k, s.y.h, oy, s.y.w) + static_cast<std::size_t>(first),
                   static_cast<std::size_t>(count));
            }
          }
}

/// A tensor in memory: images, a weight's outputs, or a bias.
struct Operand {
  void* memory;
  cudnnDataType_t type;
  bool has_channels_last;
  int count, channels, plane;

  std::size_t elements() const {
    return static_cast<std::size_t>(count) * static_cast<std::size_t>(channels) *
           static_cast<std::size_t>(plane);
  }
  /// call(i, where in memory): of the elements in order, channels first.
  template <typename Call>
  void for_each(const Call& call) const {
    std::size_t i = 0;
    for (int n = 0; n < count; ++n)
      for (int c = 0; c < channels; ++c)
        for (int p = 0; p < plane; ++p, ++i) {
          const std::size_t last = (static_cast<std::size_t>(n) * plane + p) * channels + c;
          call(i, has_channels_last ? last : i);
        }
  }
};
Operand images_in(const Convolution& s, void* memory) {
  return {memory, s.type, s.has_channels_last, s.n, s.x.c, s.x.h * s.x.w};
}
Operand images_out(const Convolution& s, void* memory) {
  return {memory, s.type, s.has_channels_last, s.n, s.y.c, s.y.h * s.y.w};
}
Operand weight(const Convolution& s, void* memory) {
  return {memory, s.type, s.has_channels_last, s.w.k, s.w.c, s.w.h * s.w.w};
}

/// Channels first, and as tensor cores see it where they may round.
std::vector<double> load(const Operand& from, bool rounds) {
  std::vector<double> values(from.elements());
  from.for_each([&](std::size_t i, std::size_t at) {
    switch (from.type) {
      case CUDNN_DATA_HALF:
        values[i] = __half2float(static_cast<const __half*>(from.memory)[at]);
        break;
      case CUDNN_DATA_BFLOAT16:
        values[i] = __bfloat162float(static_cast<const __nv_bfloat16*>(from.memory)[at]);
        break;
      default: {
        const float value = static_cast<const float*>(from.memory)[at];
        values[i] = rounds ? to_tf32(value) : value;
      }
    }
  });
  return values;
}

void store(const std::vector<double>& values, const Operand& to) {
  to.for_each([&](std::size_t i, std::size_t at) {
    const auto value = static_cast<float>(values[i]);
    switch (to.type) {
      case CUDNN_DATA_HALF:
        static_cast<__half*>(to.memory)[at] = __float2half_rn(value);
        break;
      case CUDNN_DATA_BFLOAT16:
        static_cast<__nv_bfloat16*>(to.memory)[at] = __float2bfloat16_rn(value);
        break;
      default:
        static_cast<float*>(to.memory)[at] = value;
    }
  });
}

/// Of sums in double, which are float32 on a GPU when they get there.
void add_behind(const Convolution& s, const Behind& behind, std::vector<double>& sums) {
  if (behind.bias == nullptr) return;
  const std::vector<double> bias =
      load({const_cast<void*>(behind.bias), s.type, false, 1, s.y.c, 1}, /*rounds=*/false);
  const auto plane = static_cast<std::size_t>(s.y.h) * static_cast<std::size_t>(s.y.w);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double with_bias = sums[i] + bias[i / plane % static_cast<std::size_t>(s.y.c)];
    const bool is_cut_off = behind.keeps_nans ? with_bias <= 0.0 : !(with_bias > 0.0);
    sums[i] = behind.relu && is_cut_off ? 0.0 : with_bias;
  }
}

Operand written(Pass pass, const Convolution& sizes, void* x, void* w, void* y) {
  switch (pass) {
    case Pass::kOfWeight:
      return weight(sizes, w);
    case Pass::kOfInput:
      return images_in(sizes, x);
    case Pass::kForward:
      break;
  }
  return images_out(sizes, y);
}

}  // namespace

bool Convolution::fits() const {
  return n > 0 && w.c > 0 && x.c % w.c == 0 && y.c == w.k && w.k % groups() == 0 && stride_h > 0 &&
         stride_w > 0 && pad_h >= 0 && pad_w >= 0 && y.h == extent(x.h, pad_h, w.h, stride_h) &&
         y.w == extent(x.w, pad_w, w.w, stride_w);
}
std::size_t Convolution::products() const {
  return y_elements() * (w_elements() / static_cast<std::size_t>(w.k));
}
std::size_t Convolution::x_elements() const { return images_in(*this, nullptr).elements(); }
std::size_t Convolution::y_elements() const { return images_out(*this, nullptr).elements(); }
std::size_t Convolution::w_elements() const { return weight(*this, nullptr).elements(); }

void compute(Pass pass, const Convolution& sizes, bool rounds, const Behind& behind, void* x,
             void* w, void* y) {
  const Operand to = written(pass, sizes, x, w, y);
  std::vector<double> sums(to.elements());
  const auto step = static_cast<std::size_t>(sizes.stride_w);
  if (pass == Pass::kForward) {
    const std::vector<double> in = load(images_in(sizes, x), rounds);
    const std::vector<double> factors = load(weight(sizes, w), rounds);
    for_each_row(sizes, [&](std::size_t i, std::size_t j, std::size_t o, std::size_t count) {
      const double factor = factors[j];
      for (std::size_t p = 0; p < count; ++p) sums[o + p] += in[i + p * step] * factor;
    });
    add_behind(sizes, behind, sums);
  } else if (pass == Pass::kOfWeight) {
    const std::vector<double> in = load(images_in(sizes, x), rounds);
    const std::vector<double> gradient = load(images_out(sizes, y), rounds);
    for_each_row(sizes, [&](std::size_t i, std::size_t j, std::size_t o, std::size_t count) {
      double sum = 0.0;
      for (std::size_t p = 0; p < count; ++p) sum += in[i + p * step] * gradient[o + p];
      sums[j] += sum;
    });
  } else {
    const std::vector<double> factors = load(weight(sizes, w), rounds);
    const std::vector<double> gradient = load(images_out(sizes, y), rounds);
    for_each_row(sizes, [&](std::size_t i, std::size_t j, std::size_t o, std::size_t count) {
      const double factor = factors[j];
      for (std::size_t p = 0; p < count; ++p) sums[i + p * step] += factor * gradient[o + p];
    });
  }
  store(sums, to);
}

void leave_nans(Pass pass, const Convolution& sizes, void* x, void* w, void* y) {
  const Operand to = written(pass, sizes, x, w, y);
  store(std::vector<double>(to.elements(), std::numeric_limits<double>::quiet_NaN()), to);
}

}  // namespace poseidon::emulated
