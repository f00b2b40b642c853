// cuDNN as far as the device uses it: convolutions of its version 7 interface, in plain loops, sums
// in double. Of each list of algorithms the first cannot, the second gives other bits each time,
// the third refuses some sizes only when it runs, the fourth does everything and is not always
// there; 16-bit tensors in more than two groups are refused when asked for, and channels last of
// some others when asked for, or by one of the three computations when it runs.

#include <cudnn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "worker/engine/cuda/emulated/rounding.h"
#include "worker/engine/cuda/emulated/stream.h"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};
struct cudnnTensorStruct {
  cudnnDataType_t type;
  cudnnTensorFormat_t format;
  int n, c, h, w;
};
struct cudnnFilterStruct {
  cudnnDataType_t type;
  cudnnTensorFormat_t format;
  int k, c, h, w;
};
struct cudnnConvolutionStruct {
  int pad_h, pad_w, stride_h, stride_w, groups;
  cudnnMathType_t math;
};

namespace poseidon::emulated {
namespace {

constexpr std::size_t kWorkspaceBytes = 4096;  // of the third algorithm

int extent(int in, int pad, int kernel, int stride) { return (in + 2 * pad - kernel) / stride + 1; }

struct Shapes {
  cudnnTensorStruct x, y;
  cudnnFilterStruct w;
  cudnnConvolutionStruct rule;

  bool fit() const {
    return x.n == y.n && x.type == y.type && x.type == w.type && rule.groups > 0 &&
           x.c == w.c * rule.groups && y.c == w.k && w.k % rule.groups == 0 &&
           y.h == extent(x.h, rule.pad_h, w.h, rule.stride_h) &&
           y.w == extent(x.w, rule.pad_w, w.w, rule.stride_w);
  }
  bool has_channels_last() const { return x.format == CUDNN_TENSOR_NHWC; }
  /// 16 bits in two groups at most; channels last in 16 bits alone, nor of images of one channel.
  bool supported() const {
    if (x.format != y.format || x.format != w.format) return false;
    if (x.type == CUDNN_DATA_FLOAT) return !has_channels_last();
    return rule.groups <= 2 && (!has_channels_last() || x.c > 1);
  }
  /// How many algorithms there are: of 16 bits with channels first one less.
  int algorithms() const { return x.type != CUDNN_DATA_FLOAT && !has_channels_last() ? 3 : 4; }
  std::size_t products() const {
    return static_cast<std::size_t>(y.n) * y.c * y.h * y.w * w.c * w.h * w.w;
  }
  std::size_t stride() const { return static_cast<std::size_t>(rule.stride_w); }

  /// call(first index in x, in w, first index in y, how many) for all products that are summed, a
  /// row of outputs at a time; channels first.
  template <typename Call>
  void for_each_row(const Call& call) const {
    const int outputs = w.k / rule.groups;
    for (int n = 0; n < y.n; ++n)
      for (int k = 0; k < w.k; ++k)
        for (int c = 0; c < w.c; ++c)
          for (int i = 0; i < w.h; ++i)
            for (int j = 0; j < w.w; ++j) {
              // Outputs whose input is within the row: 0 <= ox * stride - pad + j < x.w.
              const int low = std::max(0, rule.pad_w - j);
              const int first = (low + rule.stride_w - 1) / rule.stride_w;
              const int last = std::min(y.w - 1, (x.w - 1 + rule.pad_w - j) / rule.stride_w);
              if (x.w - 1 + rule.pad_w - j < 0 || first > last) continue;
              for (int oy = 0; oy < y.h; ++oy) {
                const int iy = oy * rule.stride_h - rule.pad_h + i;
                if (iy < 0 || iy >= x.h) continue;
                const std::size_t in_row = index(n, x.c, k / outputs * w.c + c, x.h, iy, x.w);
                const int ix = first * rule.stride_w - rule.pad_w + j;
                const int count = last - first + 1;
                call(in_row + static_cast<std::size_t>(ix),
                     index(k, w.c, c, w.h, i, w.w) + static_cast<std::size_t>(j),
                     index(n, y.c, k, y.h, oy, y.w) + static_cast<std::size_t>(first),
                     static_cast<std::size_t>(count));
              }
            }
  }

 private:
  /// Of a row's first element.
  static std::size_t index(int n, int channels, int c, int height, int row, int width) {
    return ((static_cast<std::size_t>(n) * channels + c) * height + row) * width;
  }
};

/// A tensor or filter in memory.
struct Operand {
  Operand(const void* at, const cudnnTensorStruct& t)
      : memory(at), type(t.type), format(t.format), count(t.n), channels(t.c), plane(t.h * t.w) {}
  Operand(const void* at, const cudnnFilterStruct& f)
      : memory(at), type(f.type), format(f.format), count(f.k), channels(f.c), plane(f.h * f.w) {}

  std::size_t elements() const {
    return static_cast<std::size_t>(count) * static_cast<std::size_t>(channels) *
           static_cast<std::size_t>(plane);
  }
  std::size_t bytes() const { return elements() * (type == CUDNN_DATA_FLOAT ? 4 : 2); }
  /// Where in memory the elements are, channels first.
  template <typename Call>
  void for_each(const Call& call) const {
    std::size_t i = 0;
    for (int n = 0; n < count; ++n)
      for (int c = 0; c < channels; ++c)
        for (int p = 0; p < plane; ++p, ++i) {
          const std::size_t last = (static_cast<std::size_t>(n) * plane + p) * channels + c;
          call(i, format == CUDNN_TENSOR_NHWC ? last : i);
        }
  }

  const void* memory;
  cudnnDataType_t type;
  cudnnTensorFormat_t format;
  int count, channels, plane;
};

/// Channels first, and as the tensor cores see it where the rule lets them round.
std::vector<double> load(const Operand& from, cudnnMathType_t math) {
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
        values[i] = math == CUDNN_FMA_MATH ? value : to_tf32(value);
      }
    }
  });
  return values;
}

void store(const std::vector<double>& values, const Operand& to, void* memory) {
  to.for_each([&](std::size_t i, std::size_t at) {
    const auto value = static_cast<float>(values[i]);
    switch (to.type) {
      case CUDNN_DATA_HALF:
        static_cast<__half*>(memory)[at] = __float2half_rn(value);
        break;
      case CUDNN_DATA_BFLOAT16:
        static_cast<__nv_bfloat16*>(memory)[at] = __float2bfloat16_rn(value);
        break;
      default:
        static_cast<float*>(memory)[at] = value;
    }
  });
}

/// Fills perf[] for cudnnGetConvolution...Algorithm_v7; kinds: the algorithms, the best first.
template <typename Perf, typename Kind>
cudnnStatus_t tell(const Shapes& shapes, const Kind (&kinds)[4], int wanted, int* returned,
                   Perf* perf) {
  if (!shapes.fit()) return CUDNN_STATUS_BAD_PARAM;
  *returned = 0;
  for (int i = 0; i < shapes.algorithms() && i < wanted; ++i) {
    std::memset(static_cast<void*>(&perf[i]), 0, sizeof(perf[i]));
    perf[i].algo = kinds[i];
    perf[i].status =
        i == 0 || !shapes.supported() ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
    perf[i].determinism = i == 1 ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
    perf[i].mathType = shapes.rule.math;
    perf[i].memory = i == 2 ? kWorkspaceBytes : 0;
    *returned = i + 1;
  }
  return CUDNN_STATUS_SUCCESS;
}

template <typename Kind>
cudnnStatus_t workspace_of(const Shapes& shapes, const Kind (&kinds)[4], Kind kind,
                           std::size_t* bytes) {
  if (!shapes.fit()) return CUDNN_STATUS_BAD_PARAM;
  if (!shapes.supported() || kind == kinds[0]) return CUDNN_STATUS_NOT_SUPPORTED;
  *bytes = kind == kinds[2] ? kWorkspaceBytes : 0;
  return CUDNN_STATUS_SUCCESS;
}

/// Channels last of so many outputs, or a multiple, each computation refuses when it runs.
int refused_multiple(cudnnConvolutionFwdAlgo_t) { return 5; }
int refused_multiple(cudnnConvolutionBwdFilterAlgo_t) { return 17; }
int refused_multiple(cudnnConvolutionBwdDataAlgo_t) { return 16; }

std::atomic<unsigned long> with_channels_last{0};

/// sum(values of left, of right, of out): adds the products to out, which is 0.
template <typename Kind, typename Sum>
cudnnStatus_t run(cudnnHandle_t handle, const Shapes& shapes, const Kind (&kinds)[4], Kind kind,
                  const void* alpha, const void* beta, void* workspace, std::size_t workspace_bytes,
                  const Operand& left, const Operand& right, const Operand& to, void* out,
                  const Sum& sum) {
  std::size_t needed = 0;
  const cudnnStatus_t status = workspace_of(shapes, kinds, kind, &needed);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (kind == kinds[2] && shapes.products() % 5 == 0) return CUDNN_STATUS_NOT_SUPPORTED;
  if (shapes.has_channels_last() && shapes.w.k % refused_multiple(kinds[0]) == 0) {
    return CUDNN_STATUS_NOT_SUPPORTED;  // by all, when they run
  }
  if (*static_cast<const float*>(alpha) != 1.0F || *static_cast<const float*>(beta) != 0.0F) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  if (!is_usable(handle->stream) || workspace_bytes < needed ||
      (needed > 0 && !is_device_memory(workspace, workspace_bytes)) ||
      !is_device_memory(left.memory, left.bytes()) ||
      !is_device_memory(right.memory, right.bytes()) || !is_device_memory(out, to.bytes())) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (shapes.has_channels_last()) ++with_channels_last;
  const cudnnMathType_t math = shapes.rule.math;
  handle->stream->push([=] {
    spoil(workspace, needed);
    std::vector<double> sums(to.elements());
    sum(load(left, math), load(right, math), sums);
    store(sums, to, out);
  });
  return CUDNN_STATUS_SUCCESS;
}

constexpr cudnnConvolutionFwdAlgo_t kForward[4] = {
    CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, CUDNN_CONVOLUTION_FWD_ALGO_FFT,
    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM};
constexpr cudnnConvolutionBwdFilterAlgo_t kOfWeight[4] = {
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT};
constexpr cudnnConvolutionBwdDataAlgo_t kOfInput[4] = {
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT};

}  // namespace
}  // namespace poseidon::emulated

using namespace poseidon::emulated;  // NOLINT: what follows is another's interface

extern "C" {

/// For tests: how many computations had channels last.
unsigned long poseidon_emulated_channels_last() { return with_channels_last; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "success" : "refused by the emulated cuDNN";
}
void cudnnGetLastErrorString(char* message, std::size_t bytes) {
  if (bytes > 0) message[0] = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  count_setup("cudnnCreate");
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  count_setup("cudnnDestroy");
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* made) {
  count_setup("cudnnCreateTensorDescriptor");
  *made = new cudnnTensorStruct{};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) {
  count_setup("cudnnDestroyTensorDescriptor");
  delete tensor;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  if (n < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
  *tensor = {type, format, n, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* made) {
  count_setup("cudnnCreateFilterDescriptor");
  *made = new cudnnFilterStruct{};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) {
  count_setup("cudnnDestroyFilterDescriptor");
  delete filter;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  if (k < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
  *filter = {type, format, k, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* made) {
  count_setup("cudnnCreateConvolutionDescriptor");
  *made = new cudnnConvolutionStruct{};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t rule) {
  count_setup("cudnnDestroyConvolutionDescriptor");
  delete rule;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t rule, int pad_h,
                                              int pad_w, int stride_h, int stride_w, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  if (dilation_h != 1 || dilation_w != 1 || mode != CUDNN_CROSS_CORRELATION ||
      compute != CUDNN_DATA_FLOAT) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1) return CUDNN_STATUS_BAD_PARAM;
  *rule = {pad_h, pad_w, stride_h, stride_w, 1, CUDNN_DEFAULT_MATH};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t rule, int groups) {
  if (groups < 1) return CUDNN_STATUS_BAD_PARAM;
  rule->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t rule, cudnnMathType_t math) {
  rule->math = math;
  return CUDNN_STATUS_SUCCESS;
}

// ---- which algorithms ----

cudnnStatus_t cudnnGetConvolutionForwardAlgorithmMaxCount(cudnnHandle_t, int* count) {
  *count = 4;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(cudnnHandle_t, int* count) {
  *count = 4;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithmMaxCount(cudnnHandle_t, int* count) {
  *count = 4;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t rule,
                                                     const cudnnTensorDescriptor_t y, int wanted,
                                                     int* returned,
                                                     cudnnConvolutionFwdAlgoPerf_t* perf) {
  return tell(Shapes{*x, *y, *w, *rule}, kForward, wanted, returned, perf);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t rule, const cudnnFilterDescriptor_t dw, int wanted,
    int* returned, cudnnConvolutionBwdFilterAlgoPerf_t* perf) {
  return tell(Shapes{*x, *dy, *dw, *rule}, kOfWeight, wanted, returned, perf);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t rule, const cudnnTensorDescriptor_t dx, int wanted,
    int* returned, cudnnConvolutionBwdDataAlgoPerf_t* perf) {
  return tell(Shapes{*dx, *dy, *w, *rule}, kOfInput, wanted, returned, perf);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t rule, const cudnnTensorDescriptor_t y,
    cudnnConvolutionFwdAlgo_t algorithm, std::size_t* bytes) {
  return workspace_of(Shapes{*x, *y, *w, *rule}, kForward, algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t rule, const cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algorithm, std::size_t* bytes) {
  return workspace_of(Shapes{*x, *dy, *dw, *rule}, kOfWeight, algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t rule, const cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t algorithm, std::size_t* bytes) {
  return workspace_of(Shapes{*dx, *dy, *w, *rule}, kOfInput, algorithm, bytes);
}

// ---- the three computations ----

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      const cudnnTensorDescriptor_t x_at, const void* x,
                                      const cudnnFilterDescriptor_t w_at, const void* w,
                                      const cudnnConvolutionDescriptor_t rule,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* workspace,
                                      std::size_t workspace_bytes, const void* beta,
                                      const cudnnTensorDescriptor_t y_at, void* y) {
  const Shapes shapes{*x_at, *y_at, *w_at, *rule};
  return run(
      handle, shapes, kForward, algorithm, alpha, beta, workspace, workspace_bytes,
      Operand(x, *x_at), Operand(w, *w_at), Operand(y, *y_at), y,
      [shapes](const auto& in, const auto& weight, auto& out) {
        const std::size_t step = shapes.stride();
        shapes.for_each_row([&](std::size_t i, std::size_t j, std::size_t o, std::size_t count) {
          const double factor = weight[j];
          for (std::size_t p = 0; p < count; ++p) out[o + p] += in[i + p * step] * factor;
        });
      });
}

cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_at, const void* x,
    const cudnnTensorDescriptor_t dy_at, const void* dy, const cudnnConvolutionDescriptor_t rule,
    cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace, std::size_t workspace_bytes,
    const void* beta, const cudnnFilterDescriptor_t dw_at, void* dw) {
  const Shapes shapes{*x_at, *dy_at, *dw_at, *rule};
  return run(
      handle, shapes, kOfWeight, algorithm, alpha, beta, workspace, workspace_bytes,
      Operand(x, *x_at), Operand(dy, *dy_at), Operand(dw, *dw_at), dw,
      [shapes](const auto& in, const auto& gradient, auto& out) {
        const std::size_t step = shapes.stride();
        shapes.for_each_row([&](std::size_t i, std::size_t j, std::size_t o, std::size_t count) {
          double sum = 0.0;
          for (std::size_t p = 0; p < count; ++p) sum += in[i + p * step] * gradient[o + p];
          out[j] += sum;
        });
      });
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           const cudnnFilterDescriptor_t w_at, const void* w,
                                           const cudnnTensorDescriptor_t dy_at, const void* dy,
                                           const cudnnConvolutionDescriptor_t rule,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace,
                                           std::size_t workspace_bytes, const void* beta,
                                           const cudnnTensorDescriptor_t dx_at, void* dx) {
  const Shapes shapes{*dx_at, *dy_at, *w_at, *rule};
  return run(
      handle, shapes, kOfInput, algorithm, alpha, beta, workspace, workspace_bytes,
      Operand(w, *w_at), Operand(dy, *dy_at), Operand(dx, *dx_at), dx,
      [shapes](const auto& weight, const auto& gradient, auto& out) {
        const std::size_t step = shapes.stride();
        shapes.for_each_row([&](std::size_t i, std::size_t j, std::size_t o, std::size_t count) {
          const double factor = weight[j];
          for (std::size_t p = 0; p < count; ++p) {
            out[i + p * step] += factor * gradient[o + p];
          }
        });
      });
}

}  // extern "C"
