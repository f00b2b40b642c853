// poseidon-bench-aggregate: the loops of the data path beside what the core's memory can do.
//
// Every benchmark goes once through 64 MiB of float32 (per array) in chunks of 2 MiB, on one
// thread, so that nothing it needs is in a cache. "bytes_per_second" counts what the operation must
// move, n being the bytes of one array:
//   copy (all kinds), copy_payload  2 n   read one array, write another
//   add (all kinds), add_payload    3 n   read both, write one
//   sgd                             3 n   read gradient and parameters, write parameters
//   sgd with momentum               5 n   the same, and read and write the velocity
//   adam                            7 n   the same with two states
// Not counted: the read of a line before an ordinary store overwrites it, which is why a copy with
// non-temporal ("streaming") stores comes out above an ordinary one. Time is the core's own (CPU
// time), so that a busy machine disturbs less.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/aligned_buffer.h"
#include "common/optimizer.h"
#include "common/wire.h"

namespace poseidon {
namespace {

constexpr std::size_t kElements = (std::size_t{64} << 20) / sizeof(float);
constexpr std::size_t kChunkElements = (std::size_t{2} << 20) / sizeof(float);
constexpr std::size_t kChunkBytes = kChunkElements * sizeof(float);

/// 64 MiB of numbers that stay ordinary (no denormals, no infinities) however often they are added.
FloatBuffer make_array(float value) {
  FloatBuffer buffer(static_cast<std::int64_t>(kElements));
  std::ranges::fill(buffer.floats(), value);
  return buffer;
}

/// Calls body(first element) for every chunk, and counts `passes` moves of all bytes.
template <typename Body>
void measure(benchmark::State& state, int passes, const Body& body) {
  for ([[maybe_unused]] const auto _ : state) {
    for (std::size_t at = 0; at < kElements; at += kChunkElements) body(at);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * passes *
                          static_cast<std::int64_t>(kElements * sizeof(float)));
}

// ---- what the core can do ----

/// Adds to, or overwrites, the first array.
using ArrayFunction = void (*)(float* to, const float* from, std::size_t size);

void add_obvious(float* sum, const float* from, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) sum[i] += from[i];
}

void copy_with_memcpy(float* to, const float* from, std::size_t size) {
  std::memcpy(to, from, size * sizeof(float));
}

#if defined(__x86_64__)
// The best of what was tried by hand: wide loads and stores, nothing else. Software prefetch costs
// a fifth, and several streams at a time are no faster. `size`: a multiple of 64.

__attribute__((target("avx2"))) void add_avx2(float* sum, const float* from, std::size_t size) {
  for (std::size_t i = 0; i < size; i += 32) {
    for (std::size_t j = i; j < i + 32; j += 8) {
      _mm256_storeu_ps(sum + j, _mm256_add_ps(_mm256_loadu_ps(sum + j), _mm256_loadu_ps(from + j)));
    }
  }
}

__attribute__((target("avx512f"))) void add_avx512_streaming(float* sum, const float* from,
                                                             std::size_t size) {
  for (std::size_t i = 0; i < size; i += 64) {
    for (std::size_t j = i; j < i + 64; j += 16) {
      _mm512_stream_ps(sum + j, _mm512_add_ps(_mm512_loadu_ps(sum + j), _mm512_loadu_ps(from + j)));
    }
  }
  _mm_sfence();
}

__attribute__((target("avx2"))) void copy_avx2_streaming(float* to, const float* from,
                                                         std::size_t size) {
  for (std::size_t i = 0; i < size; i += 32) {
    for (std::size_t j = i; j < i + 32; j += 8) {
      _mm256_stream_ps(to + j, _mm256_loadu_ps(from + j));
    }
  }
  _mm_sfence();
}
#endif

void copy_with(benchmark::State& state, ArrayFunction copy) {
  const FloatBuffer from = make_array(1.0f);
  FloatBuffer to = make_array(0.0f);
  measure(state, 2, [&](std::size_t at) {
    copy(to.floats().data() + at, from.floats().data() + at, kChunkElements);
  });
}

void add_with(benchmark::State& state, ArrayFunction add) {
  const FloatBuffer from = make_array(1e-6f);
  FloatBuffer sum = make_array(1.0f);
  measure(state, 3, [&](std::size_t at) {
    add(sum.floats().data() + at, from.floats().data() + at, kChunkElements);
  });
}

// ---- our payload loops ----

/// How a chunk arrives. gRPC's slices end where an HTTP/2 frame or a read of the socket ends, so
/// they have odd sizes, odd addresses, and floats that straddle two of them.
struct Arrival {
  const char* name;
  std::size_t piece_bytes;  ///< payload between two cuts
  std::size_t gap_bytes;    ///< frame header between two pieces, in the received buffer
};

constexpr Arrival kOnePiece{"one_piece", kChunkBytes, 0};
constexpr Arrival kFrames{"frames_16k", 16384, 9};
constexpr Arrival kReads{"reads_256k", 262144 - 9, 9};
constexpr Arrival kStraddling{"straddling_16k", 16383, 9};

/// All chunks of an array, each as a received message would hold it.
std::vector<Bytes> received(const Arrival& arrival, float value) {
  std::vector<Bytes> chunks;
  const std::vector<float> floats(kChunkElements, value);
  const auto* source = reinterpret_cast<const std::byte*>(floats.data());
  for (std::size_t at = 0; at < kElements; at += kChunkElements) {
    const std::size_t pieces = (kChunkBytes + arrival.piece_bytes - 1) / arrival.piece_bytes;
    auto memory =
        std::make_shared<std::vector<std::byte>>(kChunkBytes + (pieces + 1) * arrival.gap_bytes);
    Bytes bytes;
    std::byte* to = memory->data();
    for (std::size_t done = 0; done < kChunkBytes; done += arrival.piece_bytes) {
      const std::size_t size = std::min(arrival.piece_bytes, kChunkBytes - done);
      to += arrival.gap_bytes;
      std::memcpy(to, source + done, size);
      bytes.pieces.emplace_back(to, size);
      to += size;
    }
    bytes.owner = std::move(memory);
    chunks.push_back(std::move(bytes));
  }
  return chunks;
}

void payload_copy(benchmark::State& state, const Arrival& arrival) {
  const std::vector<Bytes> chunks = received(arrival, 1.0f);
  FloatBuffer to = make_array(0.0f);
  measure(state, 2, [&](std::size_t at) {
    copy_payload(chunks[at / kChunkElements], to.floats().subspan(at, kChunkElements));
  });
}

void payload_add(benchmark::State& state, const Arrival& arrival) {
  const std::vector<Bytes> chunks = received(arrival, 1e-6f);
  FloatBuffer sum = make_array(1.0f);
  measure(state, 3, [&](std::size_t at) {
    add_payload(chunks[at / kChunkElements], sum.floats().subspan(at, kChunkElements));
  });
}

// ---- our optimizer steps, in place as a server does them ----

void optimizer_step(benchmark::State& state, const OptimizerSpec& spec) {
  const FloatBuffer gradient = make_array(1e-3f);
  FloatBuffer parameters = make_array(1.0f);
  const int slots = optimizer_state_slots(spec);
  std::array<FloatBuffer, 2> states;
  for (int i = 0; i < slots; ++i) states[static_cast<std::size_t>(i)] = make_array(1e-3f);
  const OptimizerStep step = make_optimizer_step(spec, 100, 0.25f);
  const auto part = [](std::span<float> whole, std::size_t at) {
    return whole.empty() ? whole : whole.subspan(at, kChunkElements);
  };
  measure(state, 3 + 2 * slots, [&](std::size_t at) {
    const std::span<float> chunk = part(parameters.floats(), at);
    apply_optimizer(step, gradient.floats().subspan(at, kChunkElements), chunk, chunk,
                    part(states[0].floats(), at), part(states[1].floats(), at));
  });
}

void declare_benchmarks() {
  const auto declare = [](const std::string& name, auto function, const auto&... arguments) {
    benchmark::RegisterBenchmark(name.c_str(), function, arguments...)
        ->Unit(benchmark::kMillisecond);
  };
  declare("copy/memcpy", copy_with, copy_with_memcpy);
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
  if (has_avx2) declare("copy/avx2_streaming", copy_with, copy_avx2_streaming);
  if (has_avx2) declare("add/avx2", add_with, add_avx2);
  if (has_avx512) declare("add/avx512_streaming", add_with, add_avx512_streaming);
#endif
  declare("add/obvious_loop", add_with, add_obvious);
  for (const Arrival& arrival : {kOnePiece, kReads, kFrames, kStraddling}) {
    declare(std::string("copy_payload/") + arrival.name, payload_copy, arrival);
  }
  for (const Arrival& arrival : {kOnePiece, kReads, kFrames, kStraddling}) {
    declare(std::string("add_payload/") + arrival.name, payload_add, arrival);
  }
  OptimizerSpec sgd;
  sgd.learning_rate = 1e-3;
  OptimizerSpec momentum = sgd;
  momentum.momentum = 0.9;
  OptimizerSpec adam = sgd;
  adam.type = OptimizerType::kAdam;
  declare("apply_optimizer/sgd", optimizer_step, sgd);
  declare("apply_optimizer/sgd_momentum", optimizer_step, momentum);
  declare("apply_optimizer/adam", optimizer_step, adam);
}

}  // namespace
}  // namespace poseidon

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  poseidon::declare_benchmarks();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
