#pragma once

// Iterates over image tensors channel by channel, for each layout. For .cu files.
//
// A form defines what a thread processes at a time: kWide adjacent elements, one per channel from
// channel c on, loaded and stored together. Blocks have kThreads threads; PlainForm uses fewer for
// small planes.

#include <cstdint>

#include "worker/engine/cuda/kernels/cuda_kernels.h"
#include "worker/engine/cuda/kernels/element.cuh"
#include "worker/engine/cuda/kernels/launch.cuh"

namespace poseidon::cuda {

template <typename Number, int kWide>
struct Numbers {
  Number at[kWide] = {};
};

/// Two sums for each of the channels.
template <int kWide>
struct ChannelSums {
  double first[kWide] = {}, second[kWide] = {};
};

template <typename ElementType, int kWideness>
struct FormBase {
  using Element = ElementType;
  static constexpr int kWide = kWideness;
  using Values = Numbers<float, kWide>;
  using Sums = ChannelSums<kWide>;
  using Some = Neighbours<Element, kWide>;

  __device__ static Values load_at(const Element* tensor, std::int64_t i) {
    const Some some = neighbours_at<Some>(tensor + i);
    Values values;
    for (int k = 0; k < kWide; ++k) values.at[k] = load(&some.at[k]);
    return values;
  }
  __device__ static void store_at(Element* tensor, std::int64_t i, const Values& values) {
    Some some;
    for (int k = 0; k < kWide; ++k) store(values.at[k], &some.at[k]);
    neighbours_at<Some>(tensor + i) = some;
  }
  /// Those of the channels in an array by channel.
  template <typename Number>
  __device__ static Numbers<Number, kWide> of_channels(const Number* array, std::int64_t c) {
    Numbers<Number, kWide> numbers;
    for (int k = 0; k < kWide; ++k) numbers.at[k] = array[c + k];
    return numbers;
  }
};

/// N x C x H x W: a block takes planes.
struct PlainForm : FormBase<float, 1> {
  /// A channel's sum is split into at most this many parts, each of at least kPartElements.
  static constexpr std::int64_t kMaxParts = 32;
  static constexpr std::int64_t kPartElements = 4096;

  /// Of the whole batch, so that how many samples count changes no order.
  static std::int64_t parts(const Images& images) {
    const std::int64_t wanted = images.samples * images.plane / kPartElements;
    const std::int64_t most = images.samples < kMaxParts ? images.samples : kMaxParts;
    return wanted < 1 ? 1 : (wanted > most ? most : wanted);
  }
  static unsigned sum_blocks(const Images& images) {
    return one_block_each(parts(images) * images.channels);
  }
  static unsigned walk_blocks(const Images& images) {
    return one_block_each(images.samples * images.channels);
  }
  static unsigned threads(const Images& images) { return threads_for(images.plane); }

  /// Both sums over part `p` (of samples p, p + parts, ...) of every channel, of what take(i, c,
  /// sums) adds for an element; to partial[p][c] and behind all of those.
  template <typename Take>
  __device__ static void sum_parts(const Images& images, std::int64_t parts, double* partial,
                                   const Take& take) {
    const std::int64_t work = parts * images.channels;
    for (std::int64_t w = blockIdx.x; w < work; w += gridDim.x) {
      const std::int64_t part = w / images.channels, c = w % images.channels;
      Sums sums;
      for (std::int64_t n = part; n < images.valid; n += parts) {
        const std::int64_t begin = (n * images.channels + c) * images.plane;
        for (std::int64_t i = threadIdx.x; i < images.plane; i += blockDim.x) {
          take(begin + i, c, sums);
        }
      }
      const double first = block_sum(sums.first[0]);
      const double second = block_sum(sums.second[0]);
      if (threadIdx.x == 0) {
        partial[w] = first;
        partial[work + w] = second;
      }
    }
  }

  /// at(c) returns what is then called with (i, whether its sample counts) for every element.
  template <typename At>
  __device__ static void walk(const Images& images, const At& at) {
    const std::int64_t planes = images.samples * images.channels;
    for (std::int64_t p = blockIdx.x; p < planes; p += gridDim.x) {
      const auto of_channel = at(p % images.channels);
      const bool counts = p / images.channels < images.valid;
      const std::int64_t begin = p * images.plane;
      for (std::int64_t i = threadIdx.x; i < images.plane; i += blockDim.x) {
        of_channel(begin + i, counts);
      }
    }
  }
};

/// N x H x W x C: a warp takes channels side by side, a block some pixels at a time.
template <typename ElementType, int kWideness>
struct ChannelsLastForm : FormBase<ElementType, kWideness> {
  using Base = FormBase<ElementType, kWideness>;
  using typename Base::Sums;
  static constexpr int kWide = kWideness;
  static constexpr int kLanes = 32;
  static constexpr int kRows = kThreads / kLanes;  // pixels
  /// About as many as are on a large GPU at a time.
  static constexpr std::int64_t kMaxSumBlocks = 1024, kMaxWalkBlocks = 2048;
  static constexpr std::int64_t kLeastMaxParts = 64;
  static constexpr std::int64_t kPartPixels = 256;

  /// Groups of as many channels as a block takes.
  __host__ __device__ static std::int64_t tiles(const Images& images) {
    constexpr std::int64_t kOfABlock = std::int64_t{kLanes} * kWide;
    return (images.channels + kOfABlock - 1) / kOfABlock;
  }
  static std::int64_t parts(const Images& images) {
    const std::int64_t wanted = images.samples * images.plane / kPartPixels;
    const std::int64_t of_blocks = kMaxSumBlocks / tiles(images);
    const std::int64_t most = of_blocks < kLeastMaxParts ? kLeastMaxParts : of_blocks;
    return wanted < 1 ? 1 : (wanted > most ? most : wanted);
  }
  static unsigned sum_blocks(const Images& images) {
    return one_block_each(parts(images) * tiles(images));
  }
  /// The same number for every tile.
  static unsigned walk_blocks(const Images& images) {
    const std::int64_t useful = (images.samples * images.plane + kRows - 1) / kRows;
    const std::int64_t most = kMaxWalkBlocks / tiles(images);
    const std::int64_t each = useful < most ? useful : (most < 1 ? 1 : most);
    return static_cast<unsigned>(each * tiles(images));
  }
  static unsigned threads(const Images&) { return kThreads; }

  __device__ static std::int64_t channel(std::int64_t tile) {
    return (tile * kLanes + threadIdx.x % kLanes) * kWide;
  }

  template <typename Take>
  __device__ static void sum_parts(const Images& images, std::int64_t parts, double* partial,
                                   const Take& take) {
    __shared__ double firsts[kRows][kLanes][kWide], seconds[kRows][kLanes][kWide];
    const int x = static_cast<int>(threadIdx.x) % kLanes, y = static_cast<int>(threadIdx.x) / kLanes;
    const std::int64_t pixels = images.valid * images.plane;
    for (std::int64_t w = blockIdx.x; w < parts * tiles(images); w += gridDim.x) {
      const std::int64_t part = w / tiles(images), c = channel(w % tiles(images));
      const bool is_one = c < images.channels;
      Sums sums;
      if (is_one) {
        for (std::int64_t p = part * kRows + y; p < pixels; p += parts * kRows) {
          take(p * images.channels + c, c, sums);
        }
      }
      for (int k = 0; k < kWide; ++k) {
        firsts[y][x][k] = sums.first[k];
        seconds[y][x][k] = sums.second[k];
      }
      __syncthreads();
      if (y == 0 && is_one) {
        for (int k = 0; k < kWide; ++k) {
          for (int row = 1; row < kRows; ++row) {
            sums.first[k] += firsts[row][x][k];
            sums.second[k] += seconds[row][x][k];
          }
          partial[part * images.channels + c + k] = sums.first[k];
          partial[(parts + part) * images.channels + c + k] = sums.second[k];
        }
      }
      __syncthreads();  // they are written again
    }
  }

  template <typename At>
  __device__ static void walk(const Images& images, const At& at) {
    const std::int64_t tile = blockIdx.x % tiles(images), c = channel(tile);
    if (c >= images.channels) return;
    const std::int64_t pixels = images.samples * images.plane;
    const std::int64_t counting = images.valid * images.plane;
    const std::int64_t stride = gridDim.x / tiles(images) * kRows;
    const auto of_channels = at(c);
    std::int64_t p = blockIdx.x / tiles(images) * kRows + threadIdx.x / kLanes;
    for (; p < pixels; p += stride) of_channels(p * images.channels + c, p < counting);
  }
};

/// call(Form()) for the images' layout. Several channels to a thread where there are enough for a
/// warp.
template <typename Call>
void of_form(const Images& images, const Call& call) {
  if (!has_channels_last(images.layout)) {
    call(PlainForm());
    return;
  }
  of_layout(images.layout, [&](auto element) {
    using Element = decltype(element);
    constexpr std::int64_t kLanes = ChannelsLastForm<Element, 1>::kLanes;
    if (images.channels % 4 == 0 && images.channels >= 4 * kLanes) {
      call(ChannelsLastForm<Element, 4>());
    } else if (images.channels % 2 == 0 && images.channels >= 2 * kLanes) {
      call(ChannelsLastForm<Element, 2>());
    } else {
      call(ChannelsLastForm<Element, 1>());
    }
  });
}

// ---- of all parts; for any form ----

struct WholeSums {
  double first, second;
};

constexpr std::int64_t kWholeLanes = 8;  ///< channels of a block: few, for many blocks

inline unsigned whole_blocks(const Images& images) {
  return one_block_each((images.channels + kWholeLanes - 1) / kWholeLanes);
}

/// take(c, sums) for each channel, of what sum_parts made. Blocks have kThreads threads: some rows,
/// each of which adds every so many parts; then pairs of rows, until one is left.
template <typename Take>
__device__ void whole_sums(std::int64_t channels, std::int64_t parts, const double* partial,
                           const Take& take) {
  constexpr int kRows = kThreads / kWholeLanes;
  __shared__ double firsts[kRows][kWholeLanes], seconds[kRows][kWholeLanes];
  const std::int64_t x = threadIdx.x % kWholeLanes, y = threadIdx.x / kWholeLanes;
  for (std::int64_t begin = blockIdx.x * kWholeLanes; begin < channels;
       begin += gridDim.x * kWholeLanes) {
    const std::int64_t c = begin + x;
    WholeSums sums{0.0, 0.0};
    if (c < channels) {
      for (std::int64_t part = y; part < parts; part += kRows) {
        sums.first += partial[part * channels + c];
        sums.second += partial[(parts + part) * channels + c];
      }
    }
    firsts[y][x] = sums.first;
    seconds[y][x] = sums.second;
    for (int rows = kRows / 2; rows > 0; rows /= 2) {
      __syncthreads();
      if (y < rows) {
        firsts[y][x] += firsts[y + rows][x];
        seconds[y][x] += seconds[y + rows][x];
      }
    }
    if (y == 0 && c < channels) take(c, WholeSums{firsts[0][x], seconds[0][x]});
    __syncthreads();  // they are written again
  }
}

}  // namespace poseidon::cuda
