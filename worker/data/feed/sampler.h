#pragma once

// Computes which sample is at which position of a run, from the job's seed and the size of the data
// set. docs/sampling.md has the rule in words and in Python. Pure.
//
// Called by: worker/data/feed/batches.h. Calls: common/base/random.h.

#include <cstdint>
#include <vector>

namespace poseidon {

/// Positions count the samples of a run, 0-based, over all workers: iteration i of P1 workers with
/// batch K takes positions i * P1*K to (i+1) * P1*K - 1, and rank r those from i * P1*K + r*K on.
struct PassPosition {
  std::int64_t pass = 0;   ///< how many times all samples were seen before
  std::int64_t index = 0;  ///< position inside the pass, 0 to size - 1
};
PassPosition pass_position(std::uint64_t position, std::int64_t size);

/// First position of a worker's batch.
std::uint64_t first_position(std::int64_t iteration, std::int64_t batch_size, std::uint32_t workers,
                             std::uint32_t rank);

/// The order of pass `pass`: Fisher-Yates over the identity, driven by SplitMix64(mix_seed(seed,
/// pass)): for i = size - 1 down to 1: swap(order[i], order[below(i + 1)]). Reuses the vector's
/// memory.
void permutation_of_pass(std::uint64_t seed, std::int64_t pass, std::int64_t size,
                         std::vector<std::uint32_t>& order);

/// Walks a run. Remembers the permutation of the last pass asked for: walking forward costs one
/// shuffle per pass, jumping between passes one per jump. One thread.
class Sampler {
 public:
  /// `size`: samples in the data set, 1 to 2^32 - 1. Without shuffle each pass is the identity.
  Sampler(std::int64_t size, bool shuffle, std::uint64_t seed);

  /// Index into the data set of the sample at `position`.
  std::int64_t index_at(std::uint64_t position);

 private:
  const std::int64_t size_;
  const bool shuffle_;
  const std::uint64_t seed_;
  std::int64_t pass_ = -1;  ///< which `order_` is; -1: none yet
  std::vector<std::uint32_t> order_;
};

}  // namespace poseidon
