// Kernels in which every output element depends only on its own input elements.

#include "common/base/random.h"
#include "worker/engine/cuda/kernels/cuda_kernels.h"
#include "worker/engine/cuda/kernels/element.cuh"
#include "worker/engine/cuda/kernels/launch.cuh"

namespace poseidon::cuda {
namespace {

/// What a thread loads at once.
constexpr int kBytes = 16;

/// out[i] = of(a[i], b[i]); out may be one of them, and so may b be a.
template <typename Element, typename Of>
__global__ void map_kernel(const Element* a, const Element* b, Element* out, std::int64_t size,
                           Of of) {
  constexpr int kCount = kBytes / sizeof(Element);
  using Some = Neighbours<Element, kCount>;
  const std::int64_t whole = size / kCount;
  for (std::int64_t i = first_item(); i < whole; i += item_stride()) {
    const Some left = neighbours_at<Some>(a + i * kCount);
    const Some right = neighbours_at<Some>(b + i * kCount);
    Some result;
    for (int k = 0; k < kCount; ++k) {
      store(of(load(&left.at[k]), load(&right.at[k])), &result.at[k]);
    }
    neighbours_at<Some>(out + i * kCount) = result;
  }
  for (std::int64_t i = whole * kCount + first_item(); i < size; i += item_stride()) {
    store(of(load(a + i), load(b + i)), out + i);
  }
}

struct Relu {
  __device__ float operator()(float value, float) const { return positive_part(value); }
};
struct ReluGradient {
  __device__ float operator()(float forward_output, float gradient) const {
    return forward_output <= 0.0f ? 0.0f : gradient;
  }
};
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct SumRelu {
  __device__ float operator()(float a, float b) const { return positive_part(a + b); }
};

__global__ void dropout_kernel(std::uint64_t layer_seed, std::uint64_t first_sample, double ratio,
                               float scale, std::int64_t size, std::int64_t elements,
                               const float* in, float* out) {
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const auto sample = first_sample + static_cast<std::uint64_t>(i / elements);
    SplitMix64 random(mix_seed(layer_seed, sample));
    random.skip(static_cast<std::uint64_t>(i % elements));
    const bool kept = random.uniform() >= ratio;
    out[i] = kept ? in[i] * scale : 0.0f;
  }
}

template <typename Of>
void map(cudaStream_t stream, Layout layout, const float* a, const float* b, float* out,
         std::int64_t size) {
  of_layout(layout, [&](auto element) {
    using Element = decltype(element);
    constexpr auto kCount = static_cast<std::int64_t>(kBytes / sizeof(Element));
    launch(stream, blocks_for(size / kCount + size % kCount), kThreads, map_kernel<Element, Of>,
           elements<Element>(a), elements<Element>(b), elements<Element>(out), size, Of());
  });
}

}  // namespace

void relu(cudaStream_t stream, Layout layout, const float* in, float* out, std::int64_t size) {
  map<Relu>(stream, layout, in, in, out, size);
}

void relu_gradient(cudaStream_t stream, Layout layout, const float* forward_output,
                   const float* gradient, float* out, std::int64_t size) {
  map<ReluGradient>(stream, layout, forward_output, gradient, out, size);
}

void sum(cudaStream_t stream, Layout layout, const float* a, const float* b, float* out,
         std::int64_t size) {
  map<Sum>(stream, layout, a, b, out, size);
}

void sum_relu(cudaStream_t stream, Layout layout, const float* a, const float* b, float* out,
              std::int64_t size) {
  map<SumRelu>(stream, layout, a, b, out, size);
}

void dropout(cudaStream_t stream, std::uint64_t layer_seed, std::uint64_t first_sample,
             double ratio, std::int64_t samples, std::int64_t elements, const float* in,
             float* out) {
  const auto scale = static_cast<float>(1.0 / (1.0 - ratio));
  const std::int64_t size = samples * elements;
  launch(stream, blocks_for(size), kThreads, dropout_kernel, layer_seed, first_sample, ratio, scale,
         size, elements, in, out);
}

}  // namespace poseidon::cuda
