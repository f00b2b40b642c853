#pragma once

// The elements of tensors between layers: float, or bfloat16 in Layout::kBfloat16, which is
// converted to float for computing and rounded to nearest even when stored. For .cu files.

#include <cuda_bf16.h>

#include <cstdint>

#include "worker/engine/layout.h"

namespace poseidon::cuda {

using Bfloat16 = __nv_bfloat16;

__device__ inline float load(const float* from) { return *from; }
__device__ inline float load(const Bfloat16* from) { return __bfloat162float(*from); }
__device__ inline void store(float value, float* to) { *to = value; }
__device__ inline void store(float value, Bfloat16* to) { *to = __float2bfloat16_rn(value); }

/// The value as it is once it has been kept as an Element.
template <typename Element>
__device__ float kept_as(float value) {
  Element element;
  store(value, &element);
  return load(&element);
}

/// ReLU; a NaN stays one.
__device__ inline float positive_part(float value) { return value <= 0.0f ? 0.0f : value; }

/// Neighbours that are loaded and stored at once; their place is a multiple of their size.
template <typename Element, int kCount>
struct alignas(sizeof(Element) * kCount) Neighbours {
  Element at[kCount];
};

/// The neighbours from `place` on. What a GPU does not forgive an emulated one has to notice.
template <typename Some>
__device__ Some& neighbours_at(const void* place) {
#if !defined(__CUDACC__)
  if (reinterpret_cast<std::uintptr_t>(place) % sizeof(Some) != 0) __builtin_trap();
#endif
  return *static_cast<Some*>(const_cast<void*>(place));
}

// ---- on the host ----

/// A layer's pointer to a tensor, as one to its elements.
template <typename Element>
const Element* elements(const float* tensor) {
  return reinterpret_cast<const Element*>(tensor);
}
template <typename Element>
Element* elements(float* tensor) {
  return reinterpret_cast<Element*>(tensor);
}

/// call(Element()) for the type of the layout's elements.
template <typename Call>
void of_layout(Layout layout, const Call& call) {
  if (layout == Layout::kBfloat16) {
    call(Bfloat16());
  } else {
    call(float());
  }
}

}  // namespace poseidon::cuda
