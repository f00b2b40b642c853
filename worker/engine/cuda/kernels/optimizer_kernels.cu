// The optimizer on the device: the rules of common/tensor/optimizer_rules.h, one element per thread. With
// the same gradient an element gets the CPU's bits: nothing is contracted, division and square root
// are IEEE's (nvcc's defaults, and -fmad=false).

#include "common/tensor/optimizer_rules.h"
#include "worker/engine/cuda/kernels/cuda_kernels.h"
#include "worker/engine/cuda/kernels/launch.cuh"

namespace poseidon::cuda {
namespace {

struct OneLane {
  __host__ __device__ static float broadcast(float value) { return value; }
  __host__ __device__ static float square_root(float value) { return sqrtf(value); }
};

__global__ void sgd_kernel(SgdFactors factors, StepArrays a) {
  for (std::int64_t i = first_item(); i < a.size; i += item_stride()) {
    a.parameters[i] = rules::sgd<OneLane>(factors, a.gradient[i], a.parameters[i]);
  }
}

template <bool kNesterov>
__global__ void momentum_kernel(SgdFactors factors, StepArrays a) {
  for (std::int64_t i = first_item(); i < a.size; i += item_stride()) {
    a.parameters[i] =
        rules::momentum<OneLane, kNesterov>(factors, a.gradient[i], a.parameters[i], a.state0[i]);
  }
}

template <bool kDecoupled>
__global__ void adam_kernel(AdamFactors factors, StepArrays a) {
  for (std::int64_t i = first_item(); i < a.size; i += item_stride()) {
    a.parameters[i] = rules::adam<OneLane, kDecoupled>(factors, a.gradient[i], a.parameters[i],
                                                       a.state0[i], a.state1[i]);
  }
}

}  // namespace

void sgd_step(cudaStream_t stream, const SgdFactors& factors, bool has_momentum, bool nesterov,
              const StepArrays& arrays) {
  const unsigned blocks = blocks_for(arrays.size);
  if (!has_momentum) {
    launch(stream, blocks, kThreads, sgd_kernel, factors, arrays);
  } else if (nesterov) {
    launch(stream, blocks, kThreads, momentum_kernel<true>, factors, arrays);
  } else {
    launch(stream, blocks, kThreads, momentum_kernel<false>, factors, arrays);
  }
}

void adam_step(cudaStream_t stream, const AdamFactors& factors, bool decoupled,
               const StepArrays& arrays) {
  const unsigned blocks = blocks_for(arrays.size);
  if (decoupled) {
    launch(stream, blocks, kThreads, adam_kernel<true>, factors, arrays);
  } else {
    launch(stream, blocks, kThreads, adam_kernel<false>, factors, arrays);
  }
}

}  // namespace poseidon::cuda
