#include "server/shard/measure_sums.h"

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "common/memory/aligned_buffer.h"
#include "common/plan/chunking.h"
#include "common/tensor/element_type.h"
#include "common/transport/transport.h"
#include "sync/chunks/aggregator.h"

namespace poseidon {
namespace {

/// Parameters of the chunks in turn: more than a core's caches hold, so that sums, parameters and
/// state come from memory as they do in a job.
constexpr std::int64_t kWorkingSetBytes = 16 << 20;
/// One round over them tells enough.
constexpr std::int64_t kMaxRounds = 4;

struct Chunk {
  Chunk(std::int64_t elements, std::uint32_t workers, int slots, Team* team)
      : sum(elements, workers, ElementType::kFloat32, /*settles=*/false, team),
        parameters(elements),
        state0(slots > 0 ? elements : 0),
        state1(slots > 1 ? elements : 0) {}
  Aggregator sum;
  FloatBuffer parameters, state0, state1;
};

}  // namespace

double measure_sums(const SumsTask& task) {
  const std::int64_t elements = std::max<std::int64_t>(1, task.chunk_bytes / kElementBytes);
  const std::int64_t count = std::max<std::int64_t>(1, kWorkingSetBytes / task.chunk_bytes);
  const int slots = optimizer_state_slots(task.optimizer);
  std::vector<std::unique_ptr<Chunk>> chunks;
  for (std::int64_t i = 0; i < count; ++i) {
    chunks.push_back(std::make_unique<Chunk>(elements, task.workers, slots, task.team));
  }
  const FloatBuffer gradient(elements);  // what has just been received is warm
  Bytes payload;
  payload.pieces.push_back(as_payload(gradient.floats()));
  payload.owner = gradient.owner();

  const OptimizerStep step =
      make_optimizer_step(task.optimizer, 0, 1.0f / static_cast<float>(task.workers));
  const Nanoseconds begin = task.clock->now();
  std::int64_t done = 0;
  do {
    Chunk& chunk = *chunks[static_cast<std::size_t>(done % count)];
    for (std::uint32_t rank = 0; rank < task.workers; ++rank) {
      chunk.sum.add(rank, payload);
    }
    const std::span<float> all = chunk.parameters.floats();
    const std::span<float> state0 = chunk.state0.floats(), state1 = chunk.state1.floats();
    chunk.sum.drain([&](std::size_t first, std::size_t size, GradientTerms terms) {
      const auto run = [&](auto of) { return of.empty() ? of : of.subspan(first, size); };
      apply_optimizer(step, terms, run(all), run(all), run(state0), run(state1));
    });
    ++done;
  } while (done < kMaxRounds * count && task.clock->now() - begin < task.max_time);
  const double elapsed_s = seconds(task.clock->now() - begin);
  return static_cast<double>(done) * static_cast<double>(elements * kElementBytes) *
         static_cast<double>(task.workers) / std::max(elapsed_s, 1e-9);
}

}  // namespace poseidon
