#pragma once

// A mini-batch, from the data pipeline to the engine.
//
// Called by: worker/data/feed/batches.h, which fills it, and Executor (worker/engine/executor.h),
// which trains on it. Calls: nothing.

#include <cstdint>
#include <vector>

namespace poseidon {

/// One mini-batch in host memory. Owned by the data pipeline, read-only for the engine.
struct Batch {
  std::int64_t samples = 0;          ///< K
  std::vector<float> images;         ///< K x C x H x W, C-contiguous
  std::vector<std::int32_t> labels;  ///< K
  /// Number of the first sample in the run (iteration * P1*K + rank * K); with the seed it makes
  /// dropout masks independent of how many workers share the batch.
  std::uint64_t first_sample = 0;
  /// How many of the samples count; the rest (in a last test batch) is padding.
  std::int64_t valid_samples = 0;
};

enum class Phase { kTrain, kTest };

}  // namespace poseidon
