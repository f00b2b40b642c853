// Conversions to and from 16 bits, with a scale for each float16 tensor
// (worker/engine/half_scale.h), and to channels last where cuDNN needs it, also for floats.
// Transposed data goes through a tile in shared memory, so that reads and writes of device memory
// use whole rows.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "worker/engine/cuda/kernels/cuda_kernels.h"
#include "worker/engine/cuda/kernels/element.cuh"
#include "worker/engine/cuda/kernels/launch.cuh"

namespace poseidon::cuda {
namespace {

static_assert(kMagnitudeParts == kThreads, "one block compares all parts");

/// The block's largest value, for its thread 0. All threads must call it; a block has kThreads.
__device__ std::uint32_t block_max(std::uint32_t value) {
  __shared__ std::uint32_t of_warps[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value = max(value, __shfl_down_sync(0xFFFFFFFFu, value, offset));
  }
  __syncthreads();  // an earlier caller may still read it
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  std::uint32_t largest = 0;
  if (threadIdx.x == 0) {
    for (const std::uint32_t one : of_warps) largest = max(largest, one);
  }
  return largest;
}

/// Magnitudes of floats are in the order of their bits, infinity and then NaNs above all others.
__global__ void magnitude_part_kernel(const float* in, std::int64_t size, std::uint32_t* parts) {
  std::uint32_t largest = 0;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    largest = max(largest, __float_as_uint(in[i]) & 0x7FFFFFFFu);
  }
  largest = block_max(largest);
  if (threadIdx.x == 0) parts[blockIdx.x] = largest;
}

__global__ void half_scale_kernel(const std::uint32_t* parts, unsigned count, int limit,
                                  HalfScale* out) {
  const std::uint32_t largest = block_max(threadIdx.x < count ? parts[threadIdx.x] : 0);
  if (threadIdx.x == 0) *out = half_scale(largest, limit);
}

// ---- one value ----

struct ToBfloat16 {
  __device__ explicit ToBfloat16(const NarrowScales&) {}
  __device__ __nv_bfloat16 operator()(float value) const { return __float2bfloat16_rn(value); }
};
struct FromBfloat16 {
  __device__ explicit FromBfloat16(const NarrowScales&) {}
  __device__ float operator()(__nv_bfloat16 value) const { return __bfloat162float(value); }
};
struct AsItIs {
  __device__ explicit AsItIs(const NarrowScales&) {}
  __device__ float operator()(float value) const { return value; }
};
struct ToFloat16 {
  __device__ explicit ToFloat16(const NarrowScales& scales) : factor(scales.left->scale) {}
  __device__ __half operator()(float value) const { return __float2half_rn(value * factor); }
  float factor;
};
struct FromFloat16 {  // the inverses' product may be no float
  __device__ explicit FromFloat16(const NarrowScales& scales)
      : first(scales.left->inverse), second(scales.right->inverse) {}
  __device__ float operator()(__half value) const { return __half2float(value) * first * second; }
  float first, second;
};

__device__ float finished(float value, const Epilogue& epilogue, std::int64_t channel) {
  if (epilogue.bias != nullptr) value += epilogue.bias[channel];
  return epilogue.relu ? positive_part(value) : value;
}

/// `epilogue`: of floats that are made.
template <typename To, typename From, typename Convert>
__global__ void in_order_kernel(Planes planes, const From* in, NarrowScales scales,
                                Epilogue epilogue, To* out) {
  const Convert convert(scales);
  const std::int64_t size = planes.samples * planes.channels * planes.plane;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    To value = convert(in[i]);
    if constexpr (std::is_same_v<To, float>) {
      value = finished(value, epilogue, i / planes.plane % planes.channels);
    }
    out[i] = value;
  }
}

// ---- rows and columns change places ----

constexpr int kTile = 32;
constexpr int kTileRows = kThreads / kTile;  // that a block takes at a time

/// out[n][c][r] = in[n][r][c], then the epilogue; a tile of rows and columns is a block's at a
/// time.
template <typename To, typename From, typename Convert>
__global__ void transpose_kernel(std::int64_t count, std::int64_t rows, std::int64_t columns,
                                 const From* in, NarrowScales scales, Epilogue epilogue, To* out) {
  constexpr bool kWidens = std::is_same_v<To, float>;
  // Of floats either way. One column more: a column's elements are in different banks.
  __shared__ float tile[kTile][kTile + 1];
  const Convert convert(scales);
  const std::int64_t row_tiles = (rows + kTile - 1) / kTile;
  const std::int64_t column_tiles = (columns + kTile - 1) / kTile;
  const int x = static_cast<int>(threadIdx.x) % kTile, y = static_cast<int>(threadIdx.x) / kTile;
  for (std::int64_t t = blockIdx.x; t < count * row_tiles * column_tiles; t += gridDim.x) {
    const std::int64_t first_column = t % column_tiles * kTile;
    const std::int64_t first_row = t / column_tiles % row_tiles * kTile;
    const std::int64_t begin = t / column_tiles / row_tiles * rows * columns;
    for (int i = y; i < kTile; i += kTileRows) {
      const std::int64_t r = first_row + i, c = first_column + x;
      if (r >= rows || c >= columns) continue;
      if constexpr (kWidens) {
        tile[i][x] = convert(in[begin + r * columns + c]);
      } else {
        tile[i][x] = in[begin + r * columns + c];
      }
    }
    __syncthreads();
    for (int i = y; i < kTile; i += kTileRows) {
      const std::int64_t r = first_row + x, c = first_column + i;
      if (r >= rows || c >= columns) continue;
      const float value = tile[x][i];
      To& at = out[begin + c * rows + r];
      if constexpr (kWidens) {
        at = finished(value, epilogue, c);
      } else {
        at = convert(value);
      }
    }
    __syncthreads();  // the tile is taken again
  }
}

/// The same where one of the two is short, such as a filter's 9 positions: a block takes all of it
/// beside some of the long one, which is one piece of memory on one side and a few on the other.
constexpr std::int64_t kPieceElements = 2048, kMostShort = kPieceElements / kTile;

/// How many of the long one, so that a piece has whole rows of a warp.
__host__ __device__ inline std::int64_t piece_length(std::int64_t shorter) {
  return kPieceElements / shorter / kTile * kTile;
}

template <typename To, typename From, typename Convert>
__global__ void transpose_short_kernel(std::int64_t count, std::int64_t rows, std::int64_t columns,
                                       const From* in, NarrowScales scales, Epilogue epilogue,
                                       To* out) {
  constexpr bool kWidens = std::is_same_v<To, float>;
  __shared__ float piece[kPieceElements];  // as it lies in `in`: of some rows, or of some columns
  const Convert convert(scales);
  const bool few_rows = rows <= columns;
  const std::int64_t longer = few_rows ? columns : rows;
  const auto shorter = static_cast<int>(few_rows ? rows : columns);
  const std::int64_t most = piece_length(shorter), pieces = (longer + most - 1) / most;
  for (std::int64_t t = blockIdx.x; t < count * pieces; t += gridDim.x) {
    const std::int64_t sample = quotient(t, pieces), first = (t - sample * pieces) * most;
    const auto length = static_cast<int>(longer - first < most ? longer - first : most);
    const std::int64_t begin = sample * rows * columns;
    const auto take = [&](int to, std::int64_t from) {
      if constexpr (kWidens) {
        piece[to] = convert(in[from]);
      } else {
        piece[to] = in[from];
      }
    };
    const auto give = [&](std::int64_t to, int from, std::int64_t column) {
      if constexpr (kWidens) {
        out[to] = finished(piece[from], epilogue, column);
      } else {
        out[to] = convert(piece[from]);
      }
    };
    const auto thread = static_cast<int>(threadIdx.x);
    if (few_rows) {  // rows x length, to length x rows
      for (int i = thread; i < shorter * length; i += kThreads) {
        const int r = i / length;
        take(i, begin + r * columns + first + (i - r * length));
      }
      __syncthreads();
      for (int i = thread; i < shorter * length; i += kThreads) {
        const int c = i / shorter, r = i - c * shorter;
        give(begin + first * rows + i, r * length + c, first + c);
      }
    } else {  // length x columns, to columns x length
      for (int i = thread; i < shorter * length; i += kThreads) take(i, begin + first * columns + i);
      __syncthreads();
      for (int i = thread; i < shorter * length; i += kThreads) {
        const int c = i / length, r = i - c * length;
        give(begin + c * rows + first + r, r * shorter + c, c);
      }
    }
    __syncthreads();  // the piece is taken again
  }
}

__global__ void round_to_bfloat16_kernel(const float* in, float* out, std::int64_t size) {
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    out[i] = __bfloat162float(__float2bfloat16_rn(in[i]));
  }
}

__global__ void round_to_float16_kernel(const float* in, const HalfScale* scale, float* out,
                                        std::int64_t size) {
  const float factor = scale->scale, inverse = scale->inverse;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    out[i] = __half2float(__float2half_rn(in[i] * factor)) * inverse;
  }
}

// ---- launches ----

/// `rows`, `columns`: of each sample in `in`, which change places if it is `transposed`.
template <typename Convert, typename From, typename To>
void convert(cudaStream_t stream, const Planes& planes, std::int64_t rows, std::int64_t columns,
             bool transposed, const From* in, const NarrowScales& scales, const Epilogue& epilogue,
             To* out) {
  // With one row or one column both orders are the same.
  if (!transposed || rows == 1 || columns == 1) {
    launch(stream, blocks_for(planes.samples * rows * columns), kThreads,
           in_order_kernel<To, From, Convert>, planes, in, scales, epilogue, out);
    return;
  }
  if (const std::int64_t shorter = min(rows, columns); shorter <= kMostShort) {
    const std::int64_t length = piece_length(shorter);
    launch(stream, one_block_each(planes.samples * ((max(rows, columns) + length - 1) / length)),
           kThreads, transpose_short_kernel<To, From, Convert>, planes.samples, rows, columns, in,
           scales, epilogue, out);
    return;
  }
  const std::int64_t tiles =
      planes.samples * ((rows + kTile - 1) / kTile) * ((columns + kTile - 1) / kTile);
  launch(stream, one_block_each(tiles), kThreads, transpose_kernel<To, From, Convert>,
         planes.samples, rows, columns, in, scales, epilogue, out);
}

}  // namespace

void half_scale_of(cudaStream_t stream, const float* in, std::int64_t size, int limit,
                   std::uint32_t* parts, HalfScale* out) {
  const unsigned count = min(blocks_for(size), static_cast<unsigned>(kMagnitudeParts));
  launch(stream, count, kThreads, magnitude_part_kernel, in, size, parts);
  launch(stream, 1, kThreads, half_scale_kernel, parts, count, limit, out);
}

void narrow(cudaStream_t stream, NarrowType type, const Planes& planes, bool channels_last,
            const float* in, const HalfScale* scale, void* out) {
  const NarrowScales scales{.left = scale, .right = nullptr};
  const std::int64_t rows = planes.channels, columns = planes.plane;
  switch (type) {
    case NarrowType::kBfloat16:
      return convert<ToBfloat16>(stream, planes, rows, columns, channels_last, in, scales, {},
                                 static_cast<__nv_bfloat16*>(out));
    case NarrowType::kFloat16:
      return convert<ToFloat16>(stream, planes, rows, columns, channels_last, in, scales, {},
                                static_cast<__half*>(out));
    case NarrowType::kFloat32:
      return convert<AsItIs>(stream, planes, rows, columns, channels_last, in, scales, {},
                             static_cast<float*>(out));
  }
}

void widen(cudaStream_t stream, NarrowType type, const Planes& planes, bool channels_last,
           const void* in, const NarrowScales& scales, const Epilogue& epilogue, float* out) {
  const std::int64_t rows = channels_last ? planes.plane : planes.channels;
  const std::int64_t columns = channels_last ? planes.channels : planes.plane;
  switch (type) {
    case NarrowType::kBfloat16:
      return convert<FromBfloat16>(stream, planes, rows, columns, channels_last,
                                   static_cast<const __nv_bfloat16*>(in), scales, epilogue, out);
    case NarrowType::kFloat16:
      return convert<FromFloat16>(stream, planes, rows, columns, channels_last,
                                  static_cast<const __half*>(in), scales, epilogue, out);
    case NarrowType::kFloat32:
      return convert<AsItIs>(stream, planes, rows, columns, channels_last,
                             static_cast<const float*>(in), scales, epilogue, out);
  }
}

void round_to_bfloat16(cudaStream_t stream, const float* in, float* out, std::int64_t size) {
  launch(stream, blocks_for(size), kThreads, round_to_bfloat16_kernel, in, out, size);
}

void round_to_float16(cudaStream_t stream, const float* in, const HalfScale* scale, float* out,
                      std::int64_t size) {
  launch(stream, blocks_for(size), kThreads, round_to_float16_kernel, in, scale, out, size);
}

}  // namespace poseidon::cuda
