#pragma once

// Launching and summing for our kernels. For .cu files.

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace poseidon::cuda {

inline constexpr int kThreads = 256;
inline constexpr std::int64_t kMaxBlocks = 1 << 16;

/// Blocks for a loop over `items`, one thread each, that strides by the grid.
inline unsigned blocks_for(std::int64_t items) {
  const std::int64_t blocks = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 1 ? 1 : (blocks > kMaxBlocks ? kMaxBlocks : blocks));
}
/// Blocks for a loop over `items`, one block each, that strides by the grid.
inline unsigned one_block_each(std::int64_t items) {
  return static_cast<unsigned>(items < 1 ? 1 : (items > kMaxBlocks ? kMaxBlocks : items));
}
/// Threads of a block that walks along `items`: whole warps, no more than there is work for.
inline unsigned threads_for(std::int64_t items) {
  const std::int64_t threads = (items + 31) / 32 * 32;
  return static_cast<unsigned>(threads < 32 ? 32 : (threads > kThreads ? kThreads : threads));
}

/// Queues a kernel; whether it could be is what launch_status() tells.
template <typename... Parameters, typename... Arguments>
void launch(cudaStream_t stream, unsigned blocks, unsigned threads, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

/// Number of this thread in the grid, and of all of them.
__device__ inline std::int64_t first_item() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t item_stride() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

/// a / b of numbers that are not negative. GPUs have no division of 64 bits, and 32 mostly do.
__device__ inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) != 0) return a / b;
  return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
}

/// The block's sum, for its thread 0. All threads must call it; a block is whole warps, at most
/// kThreads threads. The order of additions depends on the size of the block alone.
__device__ inline double block_sum(double value) {
  __shared__ double of_warps[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xFFFFFFFFu, value, offset);
  }
  __syncthreads();  // an earlier caller may still read it
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0.0;
  if (threadIdx.x == 0) {
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += of_warps[warp];
  }
  return sum;
}

}  // namespace poseidon::cuda
