#pragma once

// The loops of common/tensor/kernels.h, written once. Only kernels_baseline.cc, kernels_avx2.cc and
// kernels_avx512.cc include it. Each provides `Lanes`: a vector of floats with the operators + - *
// / and the functions of `One` below.
//
// Everything here is in an unnamed namespace. Neither this file nor those that include it may call
// an inline function of another header unless it is always inlined. Otherwise that function would
// be compiled with, say, AVX-512 instructions, and the linker might pick that copy for the whole
// program. (The test kernels_symbols looks for such copies.)

#include <cstddef>
#include <cstdint>

#include "common/tensor/float16.h"
#include "common/tensor/kernels.h"
#include "common/tensor/optimizer_rules.h"

// `in` and `out` may be one array. Each loop reads and writes element i only, so no value carries
// over between iterations; compilers cannot prove that themselves.
#if defined(__clang__)
#define POSEIDON_INDEPENDENT_ELEMENTS _Pragma("clang loop vectorize(assume_safety)")
#else
#define POSEIDON_INDEPENDENT_ELEMENTS _Pragma("GCC ivdep")
#endif

namespace poseidon {

namespace {

/// One float at a time: the baseline, and the remainder of the wider loops.
struct One {
  using Vector = float;
  static constexpr std::size_t kSize = 1;

  static float load(const void* from) {
    float value;
    __builtin_memcpy(&value, from, sizeof(value));
    return value;
  }
  static void store(float* to, float value) { *to = value; }
  static float broadcast(float value) { return value; }
  static float square_root(float value) { return __builtin_sqrtf(value); }

  static std::uint16_t load16(const std::byte* from) {
    std::uint16_t value;
    __builtin_memcpy(&value, from, sizeof(value));
    return value;
  }
  static void store16(std::byte* to, std::uint16_t value) {
    __builtin_memcpy(to, &value, sizeof(value));
  }
  static float load_bfloat16(const std::byte* from) { return from_bfloat16(load16(from)); }
  static float load_float16(const std::byte* from) { return from_float16(load16(from)); }
  static void store_bfloat16(std::byte* to, float value) { store16(to, to_bfloat16(value)); }
  static void store_float16(std::byte* to, float value) { store16(to, to_float16(value)); }
};

inline constexpr std::size_t kLineBytes =
    64;  ///< bytes of a cache line and of a write-combining buffer

/// Streaming stores write whole lines, because half a line costs as much.
inline std::size_t bytes_to_next_line(const std::byte* address, std::size_t at_most) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(address) % kLineBytes;
  const std::size_t bytes = past == 0 ? 0 : kLineBytes - past;
  return bytes < at_most ? bytes : at_most;
}

/// body(lanes, i) for ascending i: as many elements at a time as `Lanes` has, then one by one. Not
/// unrolled: memory is the limit, and unrolled loops over several arrays were slower.
template <typename Lanes, typename Body>
void for_each(std::size_t size, const Body& body) {
  std::size_t i = 0;
  if constexpr (Lanes::kSize > 1) {
    for (; i + Lanes::kSize <= size; i += Lanes::kSize) body(Lanes(), i);
  }
  POSEIDON_INDEPENDENT_ELEMENTS
  for (std::size_t j = i; j < size; ++j) body(One(), j);
}

template <typename Lanes>
void add(float* sum, const std::byte* payload, std::size_t size) {
  for_each<Lanes>(size, [=](auto lanes, std::size_t i) {
    lanes.store(sum + i, lanes.load(sum + i) + lanes.load(payload + i * sizeof(float)));
  });
}

// ---- 16 bits ----

template <typename Lanes>
void array_to_bfloat16(std::byte* payload, const float* from, std::size_t size) {
  for_each<Lanes>(size, [=](auto lanes, std::size_t i) {
    lanes.store_bfloat16(payload + i * sizeof(std::uint16_t), lanes.load(from + i));
  });
}

template <typename Lanes>
void array_to_float16(std::byte* payload, const float* from, std::size_t size) {
  for_each<Lanes>(size, [=](auto lanes, std::size_t i) {
    lanes.store_float16(payload + i * sizeof(std::uint16_t), lanes.load(from + i));
  });
}

template <typename Lanes>
void array_from_bfloat16(float* to, const std::byte* payload, std::size_t size) {
  for_each<Lanes>(size, [=](auto lanes, std::size_t i) {
    lanes.store(to + i, lanes.load_bfloat16(payload + i * sizeof(std::uint16_t)));
  });
}

template <typename Lanes>
void array_from_float16(float* to, const std::byte* payload, std::size_t size) {
  for_each<Lanes>(size, [=](auto lanes, std::size_t i) {
    lanes.store(to + i, lanes.load_float16(payload + i * sizeof(std::uint16_t)));
  });
}

template <typename Lanes>
void add_bfloat16(float* sum, const std::byte* payload, std::size_t size) {
  for_each<Lanes>(size, [=](auto lanes, std::size_t i) {
    const auto value = lanes.load_bfloat16(payload + i * sizeof(std::uint16_t));
    lanes.store(sum + i, lanes.load(sum + i) + value);
  });
}

template <typename Lanes>
void add_float16(float* sum, const std::byte* payload, std::size_t size) {
  for_each<Lanes>(size, [=](auto lanes, std::size_t i) {
    const auto value = lanes.load_float16(payload + i * sizeof(std::uint16_t));
    lanes.store(sum + i, lanes.load(sum + i) + value);
  });
}

// ---- optimizer steps ----

/// body(lanes, i, gradient of element i and on), one loop for each form of GradientTerms.
template <typename Lanes, typename Body>
void for_each_gradient(GradientTerms terms, std::size_t size, const Body& body) {
  const float* const sum = terms.sum;
  const std::byte* const last = terms.last;
  if (sum == nullptr) {
    for_each<Lanes>(size, [=](auto lanes, std::size_t i) {
      body(lanes, i, lanes.load(last + i * sizeof(float)));
    });
  } else {
    for_each<Lanes>(size, [=](auto lanes, std::size_t i) {
      body(lanes, i, lanes.load(sum + i) + lanes.load(last + i * sizeof(float)));
    });
  }
}

template <typename Lanes>
void sgd(const SgdFactors& f, GradientTerms gradient, const float* in, float* out,
         std::size_t size) {
  for_each_gradient<Lanes>(gradient, size, [=](auto lanes, std::size_t i, auto sum) {
    lanes.store(out + i, rules::sgd<decltype(lanes)>(f, sum, lanes.load(in + i)));
  });
}

template <typename Lanes, bool kNesterov>
void momentum(const SgdFactors& f, GradientTerms gradient, const float* in, float* out,
              float* velocity, std::size_t size) {
  for_each_gradient<Lanes>(gradient, size, [=](auto lanes, std::size_t i, auto sum) {
    auto v = lanes.load(velocity + i);
    const auto w = rules::momentum<decltype(lanes), kNesterov>(f, sum, lanes.load(in + i), v);
    lanes.store(velocity + i, v);
    lanes.store(out + i, w);
  });
}

template <typename Lanes, bool kDecoupled>
void adam(const AdamFactors& f, GradientTerms gradient, const float* in, float* out, float* mean,
          float* square, std::size_t size) {
  for_each_gradient<Lanes>(gradient, size, [=](auto lanes, std::size_t i, auto sum) {
    auto m = lanes.load(mean + i);
    auto v = lanes.load(square + i);
    const auto w = rules::adam<decltype(lanes), kDecoupled>(f, sum, lanes.load(in + i), m, v);
    lanes.store(mean + i, m);
    lanes.store(square + i, v);
    lanes.store(out + i, w);
  });
}

// ---- the table ----

template <typename Lanes>
constexpr Kernels make_kernels(const char* name) {
  return {.name = name,
          .copy_past_caches = Lanes::copy_past_caches,
          .order_stores = Lanes::order_stores,
          .add = add<Lanes>,
          .to_bfloat16 = array_to_bfloat16<Lanes>,
          .to_float16 = array_to_float16<Lanes>,
          .from_bfloat16 = array_from_bfloat16<Lanes>,
          .from_float16 = array_from_float16<Lanes>,
          .add_bfloat16 = add_bfloat16<Lanes>,
          .add_float16 = add_float16<Lanes>,
          .sgd = sgd<Lanes>,
          .momentum = momentum<Lanes, false>,
          .nesterov = momentum<Lanes, true>,
          .adam = adam<Lanes, false>,
          .adamw = adam<Lanes, true>};
}

}  // namespace
}  // namespace poseidon
