// The kernels for x86-64 processors with AVX2 and F16C: all since about 2013. Compiled for those;
// kernels_body.h lists what must not be used here.

#include <immintrin.h>

#include "common/tensor/kernels_body.h"
#include "common/tensor/kernels_variants.h"

namespace poseidon {
namespace {

struct Avx2 {
  using Vector = __m256;
  static constexpr std::size_t kSize = 8;

  static __m256 load(const void* from) { return _mm256_loadu_ps(static_cast<const float*>(from)); }
  static void store(float* to, __m256 value) { _mm256_storeu_ps(to, value); }
  static __m256 broadcast(float value) { return _mm256_set1_ps(value); }
  static __m256 square_root(__m256 value) { return _mm256_sqrt_ps(value); }

  static __m128i load16(const std::byte* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static void store16(std::byte* to, __m128i value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
  }
  static __m256 load_bfloat16(const std::byte* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(from)), 16));
  }
  static __m256 load_float16(const std::byte* from) { return _mm256_cvtph_ps(load16(from)); }
  static void store_bfloat16(std::byte* to, __m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i rounding = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, rounding), 16);
    const __m256i quiet_nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, quiet_nan, is_nan);
    store16(to,
            _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1)));
  }
  static void store_float16(std::byte* to, __m256 value) {
    store16(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }

  static void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
    const std::size_t head = bytes_to_next_line(to, bytes);
    __builtin_memcpy(to, from, head);
    std::size_t at = head;
    for (; at + kLineBytes <= bytes; at += kLineBytes) {
      for (std::size_t part = at; part < at + kLineBytes; part += sizeof(__m256i)) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + part),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + part)));
      }
    }
    __builtin_memcpy(to + at, from + at, bytes - at);
  }
  static void order_stores() { _mm_sfence(); }
};

}  // namespace

constinit const Kernels kAvx2Kernels = make_kernels<Avx2>("avx2");

}  // namespace poseidon
