// The kernels for the oldest processor of the architecture, vectorised by the compiler as it can;
// the reference for the others.

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "common/tensor/kernels_body.h"
#include "common/tensor/kernels_variants.h"

namespace poseidon {
namespace {

struct Baseline : One {
#ifdef __SSE2__
  static void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
    const std::size_t head = bytes_to_next_line(to, bytes);
    std::memcpy(to, from, head);
    std::size_t at = head;
    for (; at + kLineBytes <= bytes; at += kLineBytes) {
      for (std::size_t part = at; part < at + kLineBytes; part += sizeof(__m128i)) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
      }
    }
    std::memcpy(to + at, from + at, bytes - at);
  }
  static void order_stores() { _mm_sfence(); }
#else
  static void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
  }
  static void order_stores() {}
#endif
};

}  // namespace

constinit const Kernels kBaselineKernels = make_kernels<Baseline>("baseline");

}  // namespace poseidon
