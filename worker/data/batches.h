#pragma once

// Mini-batches for the engine: training batches prepared ahead by threads, test batches on demand.
// Before: Dataset, Sampler, SampleReader. After: Executor::forward.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/data_probe.h"
#include "common/data_spec.h"
#include "common/ids.h"
#include "worker/data/dataset.h"
#include "worker/data/sample_reader.h"
#include "worker/engine/executor.h"
#include "worker/engine/net.h"

namespace poseidon {

/// This worker's place among all, which decides what it reads.
struct BatchPlacement {
  std::uint32_t workers = 1;  ///< P1
  std::uint32_t rank = 0;
  std::int64_t batch_size = 0;    ///< K, per worker
  Iteration first_iteration = 0;  ///< of the run; training starts here (after a restore not at 0)
  /// What all workers have taken before first_iteration. Not K * P1 * first_iteration where the run
  /// once had another number of workers.
  std::uint64_t samples_before = 0;
};

/// Batches that the threads may have ready, beside the one that the caller holds.
inline constexpr std::size_t kPrefetchBatches = 4;
/// What all of them together may take; one is read ahead even if it takes more.
inline constexpr std::size_t kMaxPrefetchBytes = std::size_t{1} << 30;
inline constexpr int kMaxDataThreads = 256;
/// How far ahead of the reading the system is told which samples come.
inline constexpr std::int64_t kReadAheadSamples = 64;

struct BatchOptions {
  int threads = 1;                   ///< that read, decode and transform; 1 to kMaxDataThreads
  std::shared_ptr<DataProbe> probe;  ///< null: nobody looks
  CorruptSamples::Log log;           ///< warnings: what is left out; null: nobody listens
};

/// Threads for a worker that has `cores` to itself: half of them, so that decoding keeps up with a
/// fast device and leaves a CPU engine its share.
int default_data_threads(int cores);

/// The training batches of one worker, in the order of worker/data/sampler.h, without end.
/// Threads of its own read and transform; after the first batches nothing is allocated but room for
/// a larger file than came before. Bytes and order do not depend on the number of threads.
class TrainBatches {
 public:
  /// Opens the data and starts the threads. `input_shape` and `classes` are the network's.
  /// INVALID_ARGUMENT, NOT_FOUND or DATA_LOSS for data that are missing, corrupt, or of
  /// another shape than the network takes; the message has the remedy. Fewer samples than one
  /// iteration takes come more than once in it, and rank 0's log says so.
  static absl::StatusOr<std::unique_ptr<TrainBatches>> open(const DataSpec& data,
                                                            const Shape& input_shape,
                                                            std::int64_t classes,
                                                            const BatchPlacement& placement,
                                                            const BatchOptions& options = {});
  /// The same from a data set that is already open.
  static absl::StatusOr<std::unique_ptr<TrainBatches>> start(std::shared_ptr<const Dataset> dataset,
                                                             const DataSpec& data,
                                                             const Shape& input_shape,
                                                             const BatchPlacement& placement,
                                                             const BatchOptions& options = {});
  ~TrainBatches();  ///< stops the threads; waits for the samples that they are reading
  TrainBatches(const TrainBatches&) = delete;
  TrainBatches& operator=(const TrainBatches&) = delete;

  /// The batch of the next iteration, valid until the following call. DEADLINE_EXCEEDED when it is
  /// not ready after `timeout` (the next call waits for the same one); any other error is the data
  /// set's, and final. One thread.
  absl::StatusOr<const Batch*> next(Milliseconds timeout);

  /// What the next call of next() will give, if it is ready: null otherwise. Valid until the call
  /// after that one, and at the same address. The same thread.
  const Batch* peek();

  /// Seconds that next() has waited so far. Any thread.
  double stall_seconds() const;

  const Dataset& dataset() const;

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
                                                           const BatchPlacement& placement,
                                                           const BatchOptions& options = {});
  static absl::StatusOr<std::unique_ptr<TestBatches>> start(std::shared_ptr<const Dataset> dataset,
                                                            const DataSpec& data,
                                                            const Shape& input_shape,
                                                            const BatchPlacement& placement,
                                                            const BatchOptions& options = {});

  /// How many batches hold this worker's samples; 0 when it has none (fewer samples than workers).
  std::int64_t batches() const;
  /// This worker's samples.
  std::int64_t samples() const { return end_ - begin_; }
  const Dataset& dataset() const { return *dataset_; }

  /// Fills `batch` with batch `index`, 0 <= index < batches(). The last one may have valid_samples
  /// < samples; it is filled by repeating its last valid sample. `batch` may be used again and
  /// again. Errors are final, but for CANCELLED once `stop` is set, which is looked at before each
  /// sample. Null: nobody stops it.
  absl::Status read(std::int64_t index, Batch& batch, const std::atomic<bool>* stop = nullptr);

 private:
  TestBatches(std::shared_ptr<const Dataset> dataset, std::vector<SampleReader> readers,
              Shape sample_shape, const BatchPlacement& placement);

  const std::shared_ptr<const Dataset> dataset_;
  std::vector<SampleReader> readers_;  ///< one per thread that reads a batch
  const Shape sample_shape_;           ///< of the network's input
  const std::int64_t batch_size_;
  const std::int64_t begin_;
  const std::int64_t end_;
};

}  // namespace poseidon
