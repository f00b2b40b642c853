// The kernels for x86-64 processors with AVX-512 (F, BW, VL). Compiled for those; see
// kernels_body.h for what may not be used here.

#include <immintrin.h>

#include "common/kernels_body.h"

namespace poseidon {
namespace {

struct Avx512 {
  using Vector = __m512;
  static constexpr std::size_t kSize = 16;

  static __m512 load(const void* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, __m512 value) { _mm512_storeu_ps(to, value); }
  static __m512 broadcast(float value) { return _mm512_set1_ps(value); }
  static __m512 square_root(__m512 value) { return _mm512_sqrt_ps(value); }

  static __m256i load16(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store16(std::uint16_t* to, __m256i value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
  }
  static __m512 load_bfloat16(const std::byte* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load16(from)), 16));
  }
  static __m512 load_float16(const std::byte* from) { return _mm512_cvtph_ps(load16(from)); }
  static void store_bfloat16(std::uint16_t* to, __m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i rounding = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, rounding), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_or_epi32(rounded, is_nan, upper, _mm512_set1_epi32(0x40));
    store16(to, _mm512_cvtepi32_epi16(result));
  }
  static void store_float16(std::uint16_t* to, __m512 value) {
    store16(to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }

  static void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
    const std::size_t head = bytes_to_next_line(to, bytes);
    __builtin_memcpy(to, from, head);
    std::size_t at = head;
    for (; at + kLineBytes <= bytes; at += kLineBytes) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
    }
    __builtin_memcpy(to + at, from + at, bytes - at);
  }
  static void order_stores() { _mm_sfence(); }
};

}  // namespace

constinit const Kernels kAvx512Kernels = make_kernels<Avx512>("avx512");

}  // namespace poseidon
