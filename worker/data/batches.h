#pragma once

// Mini-batches for the engine: training batches prepared ahead by a thread, test batches on demand.
// Before: Dataset, Sampler, Transform. After: Executor::forward.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/job.h"
#include "worker/data/dataset.h"
#include "worker/data/transform.h"
#include "worker/engine/executor.h"
#include "worker/engine/net.h"

namespace poseidon {

/// This worker's place among all, which decides what it reads.
struct BatchPlacement {
  std::uint32_t workers = 1;  ///< P1
  std::uint32_t rank = 0;
  std::int64_t batch_size = 0;    ///< K, per worker
  Iteration first_iteration = 0;  ///< of the run; training starts here (after a restore not at 0)
};

/// Batches that the prefetch thread may have ready, beside the one that the caller holds.
inline constexpr std::size_t kPrefetchBatches = 4;

/// The training batches of one worker, in order, without end: DESIGN section 9's sampling rule.
/// A thread of its own reads and transforms; after the first kPrefetchBatches + 1 batches nothing
/// is allocated.
class TrainBatches {
 public:
  /// Reads the data (all of it, for the formats of today) and starts the thread. `input_shape` and
  /// `classes` are the network's. INVALID_ARGUMENT or NOT_FOUND for data that are missing, corrupt,
  /// too few for one iteration, or of another shape than the network takes; the message has the
  /// remedy.
  static absl::StatusOr<std::unique_ptr<TrainBatches>> open(const DataSpec& data,
                                                            const Shape& input_shape,
                                                            std::int64_t classes,
                                                            const BatchPlacement& placement);
  /// The same from a data set that is already open.
  static absl::StatusOr<std::unique_ptr<TrainBatches>> start(std::shared_ptr<const Dataset> dataset,
                                                             const DataSpec& data,
                                                             const Shape& input_shape,
                                                             const BatchPlacement& placement);
  ~TrainBatches();  ///< stops the thread; waits for the sample that it is reading
  TrainBatches(const TrainBatches&) = delete;
  TrainBatches& operator=(const TrainBatches&) = delete;

  /// The batch of the next iteration, valid until the following call. DEADLINE_EXCEEDED when it is
  /// not ready after `timeout` (the next call waits for the same one); any other error is the data
  /// set's, and final. One thread.
  absl::StatusOr<const Batch*> next(Milliseconds timeout);

  /// Seconds that next() has waited so far. Any thread.
  double stall_seconds() const;

 private:
  class Impl;
  explicit TrainBatches(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// The test samples of one worker: rank r of P1 has [r * n / P1, (r + 1) * n / P1) of all n. One
/// thread.
class TestBatches {
 public:
  /// `data.test` must be there. Errors as TrainBatches::open, but any number of samples will do.
  static absl::StatusOr<std::unique_ptr<TestBatches>> open(const DataSpec& data,
                                                           const Shape& input_shape,
                                                           std::int64_t classes,
                                                           const BatchPlacement& placement);
  static absl::StatusOr<std::unique_ptr<TestBatches>> start(std::shared_ptr<const Dataset> dataset,
                                                            const DataSpec& data,
                                                            const Shape& input_shape,
                                                            const BatchPlacement& placement);

  /// How many batches hold this worker's samples; 0 when it has none (fewer samples than workers).
  std::int64_t batches() const;
  /// This worker's samples.
  std::int64_t samples() const { return end_ - begin_; }

  /// Fills `batch` with batch `index`, 0 <= index < batches(). The last one may have valid_samples
  /// < samples; it is filled by repeating its last valid sample. `batch` may be used again and
  /// again.
  absl::Status read(std::int64_t index, Batch& batch);

 private:
  TestBatches(std::shared_ptr<const Dataset> dataset, Transform transform,
              const BatchPlacement& placement);

  const std::shared_ptr<const Dataset> dataset_;
  Transform transform_;
  const std::int64_t batch_size_;
  const std::int64_t begin_;
  const std::int64_t end_;
  std::vector<std::uint8_t> pixels_;  ///< scratch: one sample
};

}  // namespace poseidon
