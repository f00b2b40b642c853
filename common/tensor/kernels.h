#pragma once

// The loops over gradient bytes, in the widest instructions that this processor has. Pure.
//
// Called by: common/wire/wire.h and sync/chunks/aggregator.h, to add, copy and convert;
// common/tensor/optimizer.h, to make a step. Calls: nothing.
//
// There is one table of functions per instruction set: "baseline" is the plain loops compiled for
// the oldest processor of the architecture, and the reference; "avx2" is written for AVX2 and F16C;
// "avx512" differs only in the optimizer steps that have state. All give the same bits: element i
// depends on element i alone, the order of operations is fixed, operations are never contracted,
// and division and square root follow IEEE 754. There is one exception: where two NaNs meet in one
// addition or multiplication, the result is a NaN, but the compiler decides which of the two.
//
// Sizes count elements unless they say bytes. `payload` arguments may have any alignment; all
// others have that of their type. Any thread.

#include <cstddef>
#include <cstdint>
#include <span>

namespace poseidon {

/// The gradient of one element is sum[i] + last[i], or last[i] alone where `sum` is null. The
/// optimizer adds the last contribution to the sum as it reads both, so their sum is never stored.
struct GradientTerms {
  const float* sum = nullptr;
  const std::byte* last = nullptr;  ///< float32, any address

  /// From element `first` on.
  GradientTerms from(std::size_t first) const {
    return {.sum = sum == nullptr ? nullptr : sum + first, .last = last + first * sizeof(float)};
  }
};

/// g = gradient * gradient_scale + weight_decay * w, then see OptimizerType.
struct SgdFactors {
  float gradient_scale, weight_decay, learning_rate, momentum;
};

/// adam: g = gradient * gradient_scale + decay * w. adamw: g = gradient * gradient_scale, and
/// w loses decay * w. Then m = beta1 m + new_share1 g, v = beta2 v + new_share2 (g g),
/// w -= rate (m / (sqrt(v) / correction2_sqrt + epsilon)).
struct AdamFactors {
  float gradient_scale, decay, rate;
  float beta1, beta2, new_share1, new_share2, correction2_sqrt, epsilon;
};

struct Kernels {
  const char* name;  ///< "baseline", "avx2", "avx512"

  /// memcpy for data that is much larger than the caches and read later: its stores neither fetch
  /// the overwritten lines nor evict other data from the cache. Other threads may read the copy
  /// after order_stores(). (Use memcpy for a copy that stays in the caches.)
  void (*copy_past_caches)(std::byte* to, const std::byte* from, std::size_t bytes);
  void (*order_stores)();

  /// sum[i] += payload[i], float32.
  void (*add)(float* sum, const std::byte* payload, std::size_t size);

  // The 16-bit formats of common/tensor/float16.h, with the same results as its functions for every
  // input, NaNs included. Payloads are little endian, like every supported machine.
  void (*to_bfloat16)(std::byte* payload, const float* from, std::size_t size);
  void (*to_float16)(std::byte* payload, const float* from, std::size_t size);
  void (*from_bfloat16)(float* to, const std::byte* payload, std::size_t size);
  void (*from_float16)(float* to, const std::byte* payload, std::size_t size);
  /// sum[i] += from_...(payload[i])
  void (*add_bfloat16)(float* sum, const std::byte* payload, std::size_t size);
  void (*add_float16)(float* sum, const std::byte* payload, std::size_t size);

  // Steps of common/tensor/optimizer.h. `in` and `out` are the same array or disjoint.
  using SgdStep = void (*)(const SgdFactors&, GradientTerms, const float* in, float* out,
                           std::size_t size);
  using MomentumStep = void (*)(const SgdFactors&, GradientTerms, const float* in, float* out,
                                float* velocity, std::size_t size);
  using AdamStep = void (*)(const AdamFactors&, GradientTerms, const float* in, float* out,
                            float* mean, float* square, std::size_t size);
  SgdStep sgd;
  MomentumStep momentum;
  MomentumStep nesterov;
  AdamStep adam;
  AdamStep adamw;
};

/// The fastest table that this processor can run; detected once.
const Kernels& kernels();

/// All tables that this processor can run, from the baseline to the fastest; for tests and
/// benchmarks.
std::span<const Kernels* const> supported_kernels();

}  // namespace poseidon
