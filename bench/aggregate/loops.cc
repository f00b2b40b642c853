#include "bench/aggregate/loops.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/memory/aligned_buffer.h"
#include "common/tensor/kernels.h"
#include "common/tensor/optimizer.h"
#include "common/wire/wire.h"
#include "sync/chunks/aggregator.h"

namespace poseidon::bench {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{2} << 20;
constexpr std::size_t kChunkElements = kChunkBytes / sizeof(float);

// ---- what the core can do ----

/// Adds to, or overwrites, the first array. `size`: a multiple of 64.
using ArrayFunction = void (*)(float* to, const float* from, std::size_t size);

void add_obvious(float* sum, const float* from, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) sum[i] += from[i];
}

void copy_with_memcpy(float* to, const float* from, std::size_t size) {
  std::memcpy(to, from, size * sizeof(float));
}

#if defined(__x86_64__)
// The best hand-written variant: wide loads and stores only. Software prefetch costs a fifth, and
// several streams at a time are no faster.

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

// ---- memory ----

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
std::vector<Bytes> received(const Arrival& arrival, float value, std::size_t chunks) {
  std::vector<Bytes> messages;
  const std::vector<float> floats(kChunkElements, value);
  const auto* source = reinterpret_cast<const std::byte*>(floats.data());
  for (std::size_t i = 0; i < chunks; ++i) {
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
    messages.push_back(std::move(bytes));
  }
  return messages;
}

/// All arrays, shared by the loops: each touches enough of them to find them out of the caches.
/// Their values stay ordinary (no denormals, no infinities) however often a loop runs.
struct Memory {
  explicit Memory(std::size_t chunk_count)
      : chunks(chunk_count), halves(chunk_count * kChunkElements, 0x1001) {
    for (FloatBuffer& array : arrays) {
      array = FloatBuffer(static_cast<std::int64_t>(chunks * kChunkElements));
      std::ranges::fill(array.floats(), 1.0f);
    }
    for (std::size_t i = 0; i < arrivals.size(); ++i) {
      messages[i] = received(arrivals[i], 1e-6f, chunks);
    }
    for (auto& of_worker : contributions) of_worker = received(kReads, 1e-6f, chunks);
  }

  float* chunk_of(std::size_t array, std::size_t chunk) {
    return arrays[array].floats().data() + chunk * kChunkElements;
  }
  std::span<float> span_of(std::size_t array, std::size_t chunk) {
    return {chunk_of(array, chunk), kChunkElements};
  }
  std::byte* halves_of(std::size_t chunk) {
    return reinterpret_cast<std::byte*>(halves.data() + chunk * kChunkElements);
  }

  std::size_t chunks;
  std::array<FloatBuffer, 4> arrays;
  std::vector<std::uint16_t> halves;
  const std::array<Arrival, 4> arrivals = {kOnePiece, kReads, kFrames, kStraddling};
  std::array<std::vector<Bytes>, 4> messages;       ///< by arrival
  std::array<std::vector<Bytes>, 4> contributions;  ///< by worker
};

// ---- the loops ----

OptimizerSpec momentum_spec() {
  OptimizerSpec spec;
  spec.learning_rate = 1e-3;
  spec.momentum = 0.9;
  spec.weight_decay = 5e-4;
  return spec;
}

class LoopList {
 public:
  explicit LoopList(std::size_t chunks) : memory_(std::make_shared<Memory>(chunks)) {}

  void add_yardsticks() {
    add_core("copy/memcpy", 2, copy_with_memcpy);
    add_core("add/obvious_loop", 3, add_obvious);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") != 0) {
      add_core("copy/avx2_streaming", 2, copy_avx2_streaming);
      add_core("add/avx2", 3, add_avx2);
    }
    if (__builtin_cpu_supports("avx512f") != 0) {
      add_core("add/avx512_streaming", 3, add_avx512_streaming);
    }
#endif
  }

  void add_payload_loops(const Kernels& with) {
    for (std::size_t i = 0; i < memory_->arrivals.size(); ++i) {
      const std::string arrival = memory_->arrivals[i].name;
      add("copy_payload/" + arrival, with.name, 2, [i, &with](Memory& memory, std::size_t chunk) {
        copy_payload(memory.messages[i][chunk], memory.span_of(0, chunk), ElementType::kFloat32,
                     with);
      });
      add("add_payload/" + arrival, with.name, 3, [i, &with](Memory& memory, std::size_t chunk) {
        add_payload(memory.messages[i][chunk], memory.span_of(0, chunk), ElementType::kFloat32,
                    with);
      });
    }
  }

  void add_conversions(const Kernels& with) {
    const auto narrow = [&](const char* name, auto convert) {
      add(name, with.name, 1.5, [convert](Memory& memory, std::size_t chunk) {
        convert(memory.halves_of(chunk), memory.chunk_of(1, chunk), kChunkElements);
      });
    };
    const auto widen = [&](const char* name, double passes, auto convert) {
      add(name, with.name, passes, [convert](Memory& memory, std::size_t chunk) {
        convert(memory.chunk_of(0, chunk), memory.halves_of(chunk), kChunkElements);
      });
    };
    narrow("to_bfloat16", with.to_bfloat16);
    widen("from_bfloat16", 1.5, with.from_bfloat16);
    widen("add_bfloat16", 2.5, with.add_bfloat16);
    narrow("to_float16", with.to_float16);
    widen("from_float16", 1.5, with.from_float16);
    widen("add_float16", 2.5, with.add_float16);
  }

  void add_optimizers(const Kernels& with) {
    OptimizerSpec spec = momentum_spec();
    add_optimizer("momentum", spec, with);
    spec.nesterov = true;
    add_optimizer("nesterov", spec, with);
    spec.nesterov = false;
    spec.momentum = 0.0;
    add_optimizer("sgd", spec, with);
    spec.type = OptimizerType::kAdam;
    add_optimizer("adam", spec, with);
    spec.type = OptimizerType::kAdamW;
    add_optimizer("adamw", spec, with);
  }

  /// As server/shard/shard.cc does it, with the kernels in use.
  void add_aggregator(std::uint32_t workers) {
    const double passes = workers == 1 ? 5 : 2 + 3 * (workers - 2) + 6;
    const OptimizerStep step =
        make_optimizer_step(momentum_spec(), 100, 1.0f / static_cast<float>(workers));
    auto sums = std::make_shared<std::vector<Aggregator>>();
    for (std::size_t i = 0; i < memory_->chunks; ++i) sums->emplace_back(kChunkElements, workers);
    add("aggregator+momentum/" + std::to_string(workers) + "_workers", kernels().name, passes,
        [workers, step, sums](Memory& memory, std::size_t chunk) {
          Aggregator& sum = (*sums)[chunk];
          for (std::uint32_t rank = 0; rank < workers; ++rank) {
            sum.add(rank, memory.contributions[rank][chunk]);
          }
          const std::span<float> w = memory.span_of(1, chunk), m = memory.span_of(2, chunk);
          sum.drain([&](std::size_t first, std::size_t size, GradientTerms gradient) {
            apply_optimizer(step, gradient, w.subspan(first, size), w.subspan(first, size),
                            m.subspan(first, size), {});
          });
        });
  }

  std::vector<Loop> take() { return std::move(loops_); }

 private:
  /// body(memory, chunk) for every chunk. `passes`: moved bytes by bytes of an array.
  template <typename Body>
  void add(const std::string& name, const char* kernels, double passes, const Body& body) {
    const auto array_bytes = static_cast<double>(memory_->chunks * kChunkBytes);
    loops_.push_back({.name = name,
                      .kernels = kernels,
                      .moved_bytes = passes * array_bytes,
                      .run = [memory = memory_, body] {
                        for (std::size_t i = 0; i < memory->chunks; ++i) body(*memory, i);
                      }});
  }

  void add_core(const std::string& name, double passes, ArrayFunction function) {
    add(name, "core", passes, [function](Memory& memory, std::size_t chunk) {
      function(memory.chunk_of(0, chunk), memory.chunk_of(1, chunk), kChunkElements);
    });
  }

  /// In place, as a server does it.
  void add_optimizer(const std::string& name, const OptimizerSpec& spec, const Kernels& with) {
    const int slots = optimizer_state_slots(spec);
    const OptimizerStep step = make_optimizer_step(spec, 100, 0.25f);
    add(name, with.name, 3 + 2 * slots, [slots, step, &with](Memory& memory, std::size_t chunk) {
      const auto state = [&](int slot) {
        return slot < slots ? memory.span_of(std::size_t{2} + static_cast<std::size_t>(slot), chunk)
                            : std::span<float>();
      };
      const std::span<float> w = memory.span_of(1, chunk);
      apply_optimizer(step, memory.span_of(0, chunk), w, w, state(0), state(1), with);
    });
  }

  std::shared_ptr<Memory> memory_;
  std::vector<Loop> loops_;
};

}  // namespace

std::vector<Loop> all_loops(std::size_t mib) {
  LoopList loops(std::max<std::size_t>(1, (mib << 20) / kChunkBytes));
  loops.add_yardsticks();
  for (const Kernels* const with : supported_kernels()) {
    loops.add_payload_loops(*with);
    loops.add_conversions(*with);
    loops.add_optimizers(*with);
  }
  for (const std::uint32_t workers : {1, 2, 4}) loops.add_aggregator(workers);
  return loops.take();
}

}  // namespace poseidon::bench
