#pragma once

// Makes the mini-batches of training and of tests: chooses their samples.
//
// Called by: worker/trainer.h, which passes them to Executor::forward. Calls:
// worker/data/feed/batch_ring.h, which reads them ahead; Dataset, Sampler, SampleReader.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/job/data_spec.h"
#include "common/probes/data_probe.h"
#include "models/net/net.h"
#include "worker/data/batch.h"
#include "worker/data/feed/batch_ring.h"
#include "worker/data/feed/sample_reader.h"
#include "worker/data/formats/dataset.h"

namespace poseidon {

/// This worker's rank among all workers, which decides the samples that it reads.
struct BatchPlacement {
  std::uint32_t workers = 1;  ///< P1
  std::uint32_t rank = 0;
  std::int64_t batch_size = 0;  ///< K, per worker
  /// Samples that all workers used before training starts here. It differs from K * P1 * iterations
  /// when the run once had another number of workers.
  std::uint64_t samples_before = 0;
};

/// Batches that the threads may have ready, beside the one that the caller holds.
inline constexpr std::size_t kPrefetchBatches = 4;
inline constexpr std::size_t kPrefetchTestBatches = 1;
inline constexpr int kMaxDataThreads = 256;

struct BatchOptions {
  int threads = 1;                   ///< that read, decode and transform; 1 to kMaxDataThreads
  std::shared_ptr<DataProbe> probe;  ///< may be null
  CorruptSamples::Log log;           ///< gets warnings about skipped samples; may be null
};

/// Threads for a worker that has `cores` to itself: half of them, so that decoding keeps up with a
/// fast device and leaves a CPU engine its share.
int default_data_threads(int cores);

/// INVALID_ARGUMENT when an iteration of all workers takes each training sample many times over:
/// the batch size is a slip, and would cost memory and time before anybody sees it.
absl::Status check_enough_samples(const DataSpec& data, std::int64_t classes,
                                  const BatchPlacement& placement);

/// The training batches of one worker, in the order of worker/data/feed/sampler.h, without end. Its
/// own threads read and transform; after the first batches it allocates memory only for files
/// larger than all earlier ones. Bytes and order do not depend on the number of threads.
class TrainBatches {
 public:
  /// Opens the data and starts the threads. `input_shape` and `classes` are the network's.
  /// INVALID_ARGUMENT, NOT_FOUND or DATA_LOSS for data that is missing, corrupt, or of a wrong
  /// shape for the network; the message has the remedy. When the set is smaller than one iteration,
  /// samples repeat within it, and rank 0 logs that; but see check_enough_samples.
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

  /// The batch of the next iteration, valid until the following call. DEADLINE_EXCEEDED when it is
  /// not ready after `timeout` (the next call waits for the same one); any other error is the data
  /// set's, and final. One thread.
  absl::StatusOr<const Batch*> next(Milliseconds timeout) { return ring_->next(timeout); }

  /// The result of the next call of next() if it is ready; null otherwise. Valid until the call
  /// after that one, and at the same address. The same thread.
  const Batch* peek() { return ring_->peek(); }

  const Dataset& dataset() const { return ring_->dataset(); }

 private:
  explicit TrainBatches(std::unique_ptr<BatchRing> ring) : ring_(std::move(ring)) {}
  const std::unique_ptr<BatchRing> ring_;
};

/// The test samples of one worker: rank r of P1 has [r * n / P1, (r + 1) * n / P1) of all n. One or
/// more of its own threads read ahead, including the first batch of the next test.
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

  /// The next batch; after the last one the first comes again. In the last batch valid_samples may
  /// be less than samples: it repeats its last valid sample. Otherwise as TrainBatches::next. Only
  /// where there are batches.
  absl::StatusOr<const Batch*> next(Milliseconds timeout);

 private:
  TestBatches(std::shared_ptr<const Dataset> dataset, const BatchPlacement& placement);

  const std::shared_ptr<const Dataset> dataset_;
  const std::int64_t batch_size_;
  const std::int64_t begin_;
  const std::int64_t end_;
  std::unique_ptr<BatchRing> ring_;  ///< null where there are no batches
};

}  // namespace poseidon
