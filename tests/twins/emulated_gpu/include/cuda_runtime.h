#pragma once

// Stands in for NVIDIA's header of this name when our kernels are compiled for the emulated GPU:
// the built-ins of nvcc that the kernels use, and launching. Its folder comes first in the include
// path.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/twins/emulated_gpu/grid.h"
#include "tests/twins/emulated_gpu/stream.h"

#undef __host__
#undef __device__
#undef __global__
#undef __shared__
#define __host__
#define __device__
#define __global__
/// A thread of the host runs one block at a time.
#define __shared__ static thread_local

using poseidon::emulated::blockDim;
using poseidon::emulated::blockIdx;
using poseidon::emulated::gridDim;
using poseidon::emulated::threadIdx;
using std::max;
using std::min;

inline void __syncthreads() { poseidon::emulated::barrier(); }
inline int __syncthreads_and(int predicate) {
  return poseidon::emulated::barrier_and(predicate != 0) ? 1 : 0;
}

/// Of whole warps alone, which is how our kernels use it.
template <typename Value>
Value __shfl_down_sync(unsigned mask, Value value, unsigned offset) {
  static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  bits = poseidon::emulated::shuffle_down(mask, bits, offset);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline unsigned __float_as_uint(float value) {
  unsigned bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const std::tuple<Parameters...> kept(std::forward<Arguments>(arguments)...);
  // Not those within structs. A real GPU would stop in the middle of the kernel.
  const auto is_of_the_device = [](const auto& parameter) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(parameter)>>) {
      return parameter == nullptr || poseidon::emulated::is_device_memory(parameter, 1);
    }
    return true;
  };
  if (!std::apply([&](const auto&... each) { return (is_of_the_device(each) && ...); }, kept)) {
    return poseidon::emulated::told(cudaErrorIllegalAddress);
  }
  return poseidon::emulated::launch(*config, [kernel, kept] { std::apply(kernel, kept); });
}
