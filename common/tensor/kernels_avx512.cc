// Optimizer steps for x86-64 processors with AVX-512 F. Compiled for those; kernels_body.h lists
// what must not be used here.
//
// Only steps with state: they touch more arrays and do more arithmetic per byte. Plain SGD,
// additions, copies and conversions were as fast or faster in AVX2 (payloads have odd addresses,
// and then every 64-byte load touches two cache lines). Figures in bench/RESULTS.md.

#include <immintrin.h>

#include "common/tensor/kernels_body.h"
#include "common/tensor/kernels_variants.h"

namespace poseidon {
namespace {

struct Avx512 {
  using Vector = __m512;
  static constexpr std::size_t kSize = 16;

  static __m512 load(const void* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, __m512 value) { _mm512_storeu_ps(to, value); }
  static __m512 broadcast(float value) { return _mm512_set1_ps(value); }
  static __m512 square_root(__m512 value) { return _mm512_sqrt_ps(value); }
};

}  // namespace

Kernels with_avx512(const Kernels& kernels) {
  Kernels result = kernels;
  result.name = "avx512";
  result.momentum = momentum<Avx512, false>;
  result.nesterov = momentum<Avx512, true>;
  result.adam = adam<Avx512, false>;
  result.adamw = adam<Avx512, true>;
  return result;
}

}  // namespace poseidon
