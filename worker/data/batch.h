#pragma once

// A mini-batch as the data pipeline makes it and an engine takes it.
// Before: worker/data/feed/batches.h fills one. After: an Executor (worker/engine/executor.h)
// trains on it.

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
  /// How many of the samples count; the rest (of a last test batch) is filling.
  std::int64_t valid_samples = 0;
};

enum class Phase { kTrain, kTest };

}  // namespace poseidon
